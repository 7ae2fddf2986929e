"""What makes up for the harm that rounding does, before and after it."""

from kerasmem.compression.quantize.repair.config import (
    Equalize,
    FoldBatchNorm,
    ReestimateBatchNorm,
)
from kerasmem.compression.quantize.repair.fold import fold_batch_norm

__all__ = ["Equalize", "FoldBatchNorm", "ReestimateBatchNorm", "fold_batch_norm"]
