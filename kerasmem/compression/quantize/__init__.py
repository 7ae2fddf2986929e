"""Weights in fewer bits."""

from kerasmem.compression.quantize.config import Quantize
from kerasmem.compression.quantize.layer import QuantizedBlock

__all__ = ["Quantize", "QuantizedBlock"]
