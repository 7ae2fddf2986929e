"""The largest batch that fits into a device's memory."""

from kerasmem.memory.batch_size.find import find_batch_size
from kerasmem.memory.batch_size.trial import BatchSize, BatchSizeTrial, CurvePoint

__all__ = ["BatchSize", "BatchSizeTrial", "CurvePoint", "find_batch_size"]
