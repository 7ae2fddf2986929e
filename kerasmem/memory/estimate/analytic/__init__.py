"""The analytic method: from the model's graph alone, without running anything."""

from kerasmem.memory.estimate.analytic.run import estimate

__all__ = ["estimate"]
