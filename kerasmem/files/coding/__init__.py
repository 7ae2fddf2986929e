"""Arrays in few bytes: positions and values apart, each near its entropy."""

from kerasmem.files.coding.tensor import (
    LARGE_BYTES,
    MOST_TIMES,
    coded_form,
    decode,
    encode,
    has_code,
)

__all__ = ["LARGE_BYTES", "MOST_TIMES", "coded_form", "decode", "encode", "has_code"]
