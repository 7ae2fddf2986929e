"""A plan put into effect: the model is run in pieces, and some of them twice."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kerasmem import backends
from kerasmem.backends.recompute import Function
from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    RecomputedSegment,
    Residuals,
    set_policy,
)
from kerasmem.graph.segments import Segment, cut, recompute
from kerasmem.memory.rematerialize.search import Pieces
from kerasmem.memory.rematerialize.setting import Path, main_part


def apply(model: Any, path: Path, pieces: Pieces) -> None:
    """Let a model run by a plan from now on.

    Args:
        model: the model.
        path: where the model inside of it is that is cut.
        pieces: ranges of that one's calls, each computed again as one.
    """
    part = main_part(model, path)
    run = partial(_recomputed, model)
    recompute(
        part, [(s, run if again else None) for s, again in _segments(part, pieces)]
    )
    set_policy(model, treatment(model, path, pieces))


def treatment(model: Any, path: Path, pieces: Pieces) -> ActivationPolicy:
    """Return how a model would train by a plan; the model stays as it is.

    Args:
        model: the model.
        path: where the model inside of it is that is cut.
        pieces: ranges of that one's calls, each computed again as one.
    """
    noted = [
        RecomputedSegment(segment.nodes, Residuals.ALL)
        for segment, again in _segments(main_part(model, path), pieces)
        if again
    ]
    settings = {"path": list(path), "pieces": [list(piece) for piece in pieces]}
    return ActivationPolicy("rematerialize", apply_again, settings, tuple(noted))


def _segments(part: Any, pieces: Pieces) -> Iterator[tuple[Segment, bool]]:
    """Yield all segments in order, and whether each is computed again."""
    starts = sorted({place for piece in pieces for place in piece} - {0})
    again = {start for start, _ in pieces}
    at = 0
    for segment in cut(part, starts):
        yield segment, at in again
        at += len(segment.nodes)


def apply_again(model: Any, settings: Mapping[str, Any]) -> None:
    """Let a model that was made anew train as the one with this plan."""
    pieces: Sequence[Sequence[int]] = settings["pieces"]
    apply(model, tuple(settings["path"]), tuple((a, b) for a, b in pieces))


def _recomputed(model: Any, function: Function) -> Function:
    # Whether XLA compiles the step is known once it is traced.
    compiled = model.compiled and bool(model.jit_compile)
    return backends.current().recomputed(function, compiled=compiled)
