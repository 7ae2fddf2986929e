"""Finds the largest batch size that fits into device memory."""

from kerasmem.memory.batch_size.find import find_batch_size
from kerasmem.memory.batch_size.trial import BatchSize, BatchSizeTrial, CurvePoint

__all__ = ["BatchSize", "BatchSizeTrial", "CurvePoint", "find_batch_size"]
