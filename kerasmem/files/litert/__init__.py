"""LiteRT files: what goes in and comes out, run back, compared with the model."""

from kerasmem.files.litert.arguments import arguments_of, call_flat, in_structure
from kerasmem.files.litert.compare import difference
from kerasmem.files.litert.constants import constant_bytes
from kerasmem.files.litert.interpreter import LiteRT
from kerasmem.files.litert.samples import flat_samples, random_samples
from kerasmem.files.litert.writer import Writer

__all__ = [
    "LiteRT",
    "Writer",
    "arguments_of",
    "call_flat",
    "constant_bytes",
    "difference",
    "flat_samples",
    "in_structure",
    "random_samples",
]
