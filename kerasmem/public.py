"""The names that `import kerasmem` gives."""

from kerasmem import callbacks, errors, memory
from kerasmem.compression.compress import compress
from kerasmem.compression.distill import Distiller, distill
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.result import CompressionResult
from kerasmem.files import load_model, save_model
from kerasmem.memory.batch_size import find_batch_size
from kerasmem.memory.estimate import estimate_memory

__all__ = [
    "CompressionResult",
    "Distiller",
    "Prune",
    "Quantize",
    "callbacks",
    "compress",
    "distill",
    "errors",
    "estimate_memory",
    "find_batch_size",
    "load_model",
    "memory",
    "save_model",
]
