"""What a step needs, from real steps of small batches on this machine's CPU."""

from kerasmem.memory.measure.measure import COUNTING_ALLOCATOR, measure_step

__all__ = ["COUNTING_ALLOCATOR", "measure_step"]
