"""The largest batch that fits into a device's memory."""

from kerasmem.memory.batch_size.find import find_batch_size
from kerasmem.memory.batch_size.trial import BatchSize, CurvePoint, Trial

__all__ = ["BatchSize", "CurvePoint", "Trial", "find_batch_size"]
