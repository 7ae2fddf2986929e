"""Why an allocator had to refuse, and what helps, in words."""

from kerasmem.memory.allocator.bfc import BFCAllocator
from kerasmem.memory.allocator.bins import rounded
from kerasmem.units import format_bytes


def why_refused(allocator: BFCAllocator, size: int) -> str:
    """Return one or two sentences on why `size` bytes are not to be had.

    Args:
        allocator: as it was when it refused.
        size: bytes asked for.
    """
    policy, need = allocator.policy, rounded(size)
    asked, limit = format_bytes(size), format_bytes(policy.limit_bytes)
    largest = format_bytes(allocator.largest_free_bytes)
    if need > policy.limit_bytes:
        return (
            f"{asked} in one piece is more than the limit of {limit}: no smaller "
            "batch of the other tensors helps, this one has to shrink."
        )
    left = policy.limit_bytes - allocator.in_use_bytes
    if need > left:
        return (
            f"{format_bytes(allocator.in_use_bytes)} of {limit} are in use, so {asked} "
            f"more do not fit: {format_bytes(need - left)} are missing."
        )
    remedy = "use the allocator cuda_malloc_async"
    if policy.growth:
        remedy = f"preallocate the pool (growth=False), or {remedy}"
    return (
        f"{left / policy.limit_bytes:.0%} of {limit} are free but no block above "
        f"{largest}, so {asked} in one piece are not to be had: {remedy}."
    )
