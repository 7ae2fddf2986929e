"""What makes up for the harm that rounding does, before and after it."""

from kerasmem.compression.quantize.repair.fold import fold_batch_norm

__all__ = ["fold_batch_norm"]
