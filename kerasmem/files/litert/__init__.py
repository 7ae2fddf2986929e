"""LiteRT files: what goes in and comes out, run back, compared with the model."""

from kerasmem.files.litert.arguments import arguments_of, call_flat
from kerasmem.files.litert.compare import difference
from kerasmem.files.litert.interpreter import LiteRT
from kerasmem.files.litert.samples import flat_samples, random_samples
from kerasmem.files.litert.writer import Writer

__all__ = [
    "LiteRT",
    "Writer",
    "arguments_of",
    "call_flat",
    "difference",
    "flat_samples",
    "random_samples",
]
