"""Public names of `kerasmem`."""

from kerasmem import callbacks, errors, layers, memory, optimizers
from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.compress import compress
from kerasmem.compression.distill import Distill, Distiller, distill
from kerasmem.compression.distill import losses as distillation
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize import (
    Budget,
    Calibration,
    Equalize,
    FoldBatchNorm,
    Quantize,
    ReestimateBatchNorm,
)
from kerasmem.compression.quantize.aware.model import quantization_aware
from kerasmem.compression.quantize.dequantize import dequantize
from kerasmem.compression.result import CompressionResult
from kerasmem.compression.student import make_student
from kerasmem.extras.litert import export
from kerasmem.extras.litert.runtimes import compare_runtimes
from kerasmem.files import load_model, save_model
from kerasmem.memory.batch_size import find_batch_size
from kerasmem.memory.compress_activations import compress_activations
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.fit import fit
from kerasmem.memory.plan import plan_memory, rematerialize
from kerasmem.memory.predict import predict

__all__ = [
    "Budget",
    "Calibration",
    "Cluster",
    "CompressionResult",
    "Distill",
    "Distiller",
    "Equalize",
    "Factorize",
    "FoldBatchNorm",
    "Prune",
    "PruneChannels",
    "Quantize",
    "ReestimateBatchNorm",
    "callbacks",
    "compare_runtimes",
    "compress",
    "compress_activations",
    "dequantize",
    "distill",
    "distillation",
    "errors",
    "estimate_memory",
    "export",
    "find_batch_size",
    "fit",
    "layers",
    "load_model",
    "make_student",
    "memory",
    "optimizers",
    "plan_memory",
    "predict",
    "quantization_aware",
    "rematerialize",
    "save_model",
]
