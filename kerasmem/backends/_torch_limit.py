"""A limit on the memory that torch takes of a GPU."""

import torch


def set_limit(limit_bytes: int) -> None:
    """Let torch's allocator take no more than this of the first GPU."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0), 0)
