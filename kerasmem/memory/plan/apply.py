"""Recomputation in a model: changes its calls in training, in place."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    RecomputedSegment,
    Residuals,
    set_policy,
)
from kerasmem.graph.layers import own_graph
from kerasmem.graph.segments import Segment, cut, recomputation, recompute
from kerasmem.memory.estimate.request import Input
from kerasmem.memory.plan.parts import main_part, with_graph
from kerasmem.memory.plan.steps import Path, Pieces
from kerasmem.types import Model

NAME = "rematerialize"


def recompute_in_place(
    model: Model, part: Any, path: Path, pieces: Pieces, inputs: Sequence[Input]
) -> Callable[[], None]:
    """Make `model` recompute pieces of its part at a path. Returns the undo.

    `inputs` are the inputs of a subclassed model.
    """
    policy, run = policy_for(model, part, path, pieces, inputs), recomputation(model)
    with ExitStack() as undo:
        undo.callback(set_policy(model, policy))
        pairs = [(s, run if again else None) for s, again in _segments(part, pieces)]
        undo.callback(recompute(part, pairs))
        return undo.pop_all().close


def policy_for(
    model: Model, part: Any, path: Path, pieces: Pieces, inputs: Sequence[Input]
) -> ActivationPolicy:
    """Return the policy of recomputed pieces without changing the model."""
    segments = tuple(
        RecomputedSegment(segment.nodes, Residuals.ALL)
        for segment, again in _segments(part, pieces)
        if again
    )
    settings = {"path": list(path), "pieces": [list(piece) for piece in pieces]}
    if own_graph(model) is None:
        settings["inputs"] = [[x.name, list(x.shape), x.dtype] for x in inputs]
    return ActivationPolicy(NAME, apply_again, settings, segments)


def _segments(part: Any, pieces: Pieces) -> Iterator[tuple[Segment, bool]]:
    starts = sorted({place for piece in pieces for place in piece} - {0})
    again = {start for start, _ in pieces}
    at = 0
    for segment in cut(part, starts):
        yield segment, at in again
        at += len(segment.nodes)


def apply_again(model: Model, settings: Mapping[str, Any]) -> None:
    """Apply the settings to a model that was created again."""
    pieces: Sequence[Sequence[int]] = settings["pieces"]
    inputs = [
        Input(name, tuple(shape), dtype)
        for name, shape, dtype in settings.get("inputs", ())
    ]
    path, ranges = tuple(settings["path"]), tuple((a, b) for a, b in pieces)
    part = main_part(with_graph(model, inputs), path)
    recompute_in_place(model, part, path, ranges, inputs)
