"""The ranges of activations, from a sample of data that streams through the model."""

from kerasmem.compression.quantize.activations.calibrate import (
    calibrate,
)
from kerasmem.compression.quantize.activations.table import range_table

__all__ = ["calibrate", "range_table"]
