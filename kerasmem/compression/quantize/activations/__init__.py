"""The ranges of activations, from a sample of data that streams through the model."""

from kerasmem.compression.quantize.activations.calibrate import (
    METHODS,
    Calibration,
    calibrate,
)
from kerasmem.compression.quantize.activations.table import range_table

__all__ = ["METHODS", "Calibration", "calibrate", "range_table"]
