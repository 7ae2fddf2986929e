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
    cause, most = cause_of(allocator, size), allocator.policy.most_bytes
    if rounded(size) > most:
        return (
            f"{cause} No smaller batch of the other tensors helps, this one has to "
            "shrink."
        )
    if rounded(size) > most - allocator.in_use_bytes:
        return cause
    remedy = "use the allocator cuda_malloc_async."
    if allocator.policy.growth:
        remedy = f"preallocate the pool (growth=False), or {remedy}"
    return f"{cause.removesuffix('.')}: {remedy}"


def cause_of(allocator: BFCAllocator, size: int) -> str:
    """Return why `size` bytes are not to be had, without what would help."""
    need, most = rounded(size), allocator.policy.most_bytes
    asked, limit = format_bytes(size), format_bytes(most)
    if need > most:
        return f"{asked} in one piece is more than the limit of {limit}."
    left = most - allocator.in_use_bytes
    if need > left:
        waste = allocator.wasted_bytes
        told = f" ({format_bytes(waste)} of them waste)" if waste else ""
        return (
            f"{format_bytes(allocator.in_use_bytes)} of {limit} are in use{told}, so "
            f"{asked} more do not fit: {format_bytes(need - left)} are missing."
        )
    return (
        f"{left / most:.0%} of {limit} are free but no block above "
        f"{format_bytes(allocator.obtainable_bytes)}, so {asked} in one piece are not "
        "to be had."
    )
