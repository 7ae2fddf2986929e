"""Weights in fewer bits."""

from kerasmem.compression.quantize.config import Quantize
from kerasmem.compression.quantize.dequantize import dequantize
from kerasmem.compression.quantize.layer import QuantizedBlock
from kerasmem.compression.quantize.repair import (
    Equalize,
    FoldBatchNorm,
    ReestimateBatchNorm,
)

__all__ = [
    "Equalize",
    "FoldBatchNorm",
    "Quantize",
    "QuantizedBlock",
    "ReestimateBatchNorm",
    "dequantize",
]
