"""Weights and activations in int8, computed with integers as LiteRT does."""

from kerasmem.compression.quantize.static.apply import (
    integer_model,
    quantize_static,
)
from kerasmem.compression.quantize.static.base import IntegerLayer
from kerasmem.compression.quantize.static.boundary import FromCodes, ToCodes

__all__ = ["FromCodes", "IntegerLayer", "ToCodes", "integer_model", "quantize_static"]
