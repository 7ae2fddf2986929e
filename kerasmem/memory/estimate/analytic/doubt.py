"""How far an analytic estimate may be off: what is not known before a run."""

from collections.abc import Iterable

from kerasmem.memory.estimate.analytic.framework import Framework
from kerasmem.memory.program import Program
from kerasmem.records import EstimatePart
from kerasmem.units import GIB

_UNKNOWN_LAYER = 0.4
"""Added upward where a layer is in no table: what it keeps inside is not seen."""
_RECURRENCE = (0.3, 0.5)
"""Where cuDNN runs a recurrent layer: it does not say what it reserves."""
_WHOLE_CHUNKS = 0.1
"""Of the variables: TensorFlow's allocator may give their chunks whole as well."""
_UPDATE_COPIES = 2
"""Copies of the largest variable that XLA makes where it cannot update in place."""


def interval(
    how: Framework, step: Program, stored: Iterable[EstimatePart], peak: int
) -> tuple[int, int]:
    """Return the ends of the interval that holds the truth nine times in ten.

    Args:
        how: how the backend runs a step.
        step: the operations of the step.
        stored: what is there before it, one part per variable.
        peak: its estimated peak in bytes.
    """
    sizes = [part.nbytes for part in stored]
    moving = peak - sum(sizes)
    down, up = how.doubt
    if how.fused_recurrence and any(op.name == "recurrence" for op in step.ops):
        down, up = max(down, _RECURRENCE[0]), max(up, _RECURRENCE[1])
    if step.unknown:
        up += _UNKNOWN_LAYER
    more = round(_WHOLE_CHUNKS * sum(sizes)) if how.allocator == "bfc" else 0
    if how.one_block:
        more += _UPDATE_COPIES * max(sizes, default=0)
    return peak - round(down * moving), peak + round(up * moving) + more


def first_interval(
    low: int, high: int, peak: int, first: int, *, tries: bool
) -> tuple[int, int]:
    """Return the ends of the interval of the first step.

    Args:
        low: lower end for later steps.
        high: upper end for later steps.
        peak: estimated peak of later steps.
        first: estimated peak of the first step.
        tries: whether the backend tries out algorithms for convolutions: then it may
            take a GiB more, or as much again as the largest that is known.
    """
    if not tries:
        return min(low, first), max(high, first)
    more = max(GIB, first - peak)
    return min(low, first), max(high, first) + more
