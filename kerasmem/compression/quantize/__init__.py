"""Weights in fewer bits."""

from kerasmem.compression.quantize.config import (
    Budget,
    Calibration,
    Equalize,
    FoldBatchNorm,
    Quantize,
    ReestimateBatchNorm,
)

__all__ = [
    "Budget",
    "Calibration",
    "Equalize",
    "FoldBatchNorm",
    "Quantize",
    "ReestimateBatchNorm",
]
