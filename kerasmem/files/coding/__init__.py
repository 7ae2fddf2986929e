"""Arrays in few bytes: positions and values apart, each near its entropy."""

from kerasmem.files.coding.tensor import decode, encode

__all__ = ["decode", "encode"]
