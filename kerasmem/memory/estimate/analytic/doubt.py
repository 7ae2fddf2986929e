"""How far an analytic estimate may be off: what is not known before a run."""

from collections.abc import Iterable
from dataclasses import dataclass

from kerasmem.memory.estimate.analytic.framework import Framework
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import Program
from kerasmem.records import EstimatePart
from kerasmem.units import GIB

_WIDTH = {"tensorflow": 0.52, "jax": 1.14, "torch": 0.084}
"""The split-conformal factor of the 70 cases of an H200: so many times as wide the
interval of a later step holds nine of ten (Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005). `tests/benchmarks/bench_estimate.py` finds it, and
tells how many cases of models left out it holds."""
_UNKNOWN_LAYER = 0.4
"""Added upward where a layer is in no table: what it keeps inside is not seen."""
_RECURRENCE = (0.3, 0.5)
"""Where cuDNN runs a recurrent layer: it does not say what it reserves."""
_WHOLE_CHUNKS = 0.1
"""Of the variables: TensorFlow's allocator may give their chunks whole as well."""
_UPDATE_COPIES = 2
"""Copies of the largest variable that XLA makes where it cannot update in place."""


@dataclass(frozen=True)
class Doubt:
    """How far an estimated peak may be off, in bytes.

    Args:
        below: downward.
        above: upward.
        unseen: upward in addition, for layers in no table.
    """

    below: float
    above: float
    unseen: float

    def around(self, peak: int, width: float = 1.0) -> tuple[int, int]:
        """Return the ends of the interval around a peak, so many times as wide."""
        above = width * self.above + self.unseen
        return peak - round(width * self.below), peak + round(above)


def calibrated_width(request: Request) -> float:
    """Return how many times as wide the interval of a later step has to be."""
    of_gpu = request.training and request.device == "gpu"
    return _WIDTH[request.backend] if of_gpu else 1.0


def doubt_of(
    how: Framework, step: Program, stored: Iterable[EstimatePart], peak: int
) -> Doubt:
    """Return how far the peak of a step may be off.

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
    more = _WHOLE_CHUNKS * sum(sizes) if how.allocator == "bfc" else 0
    if how.one_block:
        more += _UPDATE_COPIES * max(sizes, default=0)
    unseen = _UNKNOWN_LAYER * moving if step.unknown else 0.0
    return Doubt(down * moving, up * moving + more, unseen)


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
