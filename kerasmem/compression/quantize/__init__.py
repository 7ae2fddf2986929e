"""Weights in fewer bits."""

from kerasmem.compression.quantize.config import Quantize
from kerasmem.compression.quantize.layer import Int8Block

__all__ = ["Int8Block", "Quantize"]
