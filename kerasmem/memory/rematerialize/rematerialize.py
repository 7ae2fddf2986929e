"""Rematerialization: a model whose segments run again for the backward pass."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kerasmem.backends import current, device_kind
from kerasmem.backends.recompute import Function
from kerasmem.checks import Whole
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    RecomputedSegment,
    Residuals,
    check_one_policy,
    set_policy,
)
from kerasmem.graph.clone import clone, same_draws
from kerasmem.graph.layers import check_built
from kerasmem.graph.segments import Segment, cut, recompute
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.rematerialize.costs import Path, Pieces
from kerasmem.memory.rematerialize.plan import (
    Rematerialization,
    check_graph,
    main_part,
    recorded_step,
)
from kerasmem.memory.rematerialize.search import by_limit, by_segments
from kerasmem.types import Model
from kerasmem.units import parse_bytes

_LEAST_SHARE = 0.05  # of the peak: estimates are not sharper

_PLANS: WeakKeyDictionary[Any, Rematerialization] = WeakKeyDictionary()


def rematerialize(
    model: Model,
    *,
    memory_limit: int | str | None = None,
    segments: int | Sequence[str] | None = None,
    batch_size: int = 32,
    input_shape: Any | None = None,
) -> Any:
    """Rematerialization: return a copy of `model` that trains in less memory.

    It trains to the same weights. The activations of whole pieces of the model are not
    kept for the backward pass but computed a second time when it gets there, from what
    entered the piece (gradient checkpointing). The copy is a plain Keras model: it
    saves and loads as the model would, and what is loaded trains plainly again.
    Inference is as ever. The optimizer starts anew.

    Without a limit and without segments the plan is the one with the lowest estimated
    peak; a warning tells if that is less than 5 % lower. `plan_of(copy)` tells what it
    is and what it is estimated to cost.

    Returns:
        The copy, compiled as `model` is, with an optimizer that starts anew.

    Source: Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory
    Cost", 2016.

    Args:
        model: a built Sequential or Functional model; a nested model that holds most
            of the activations is cut in its place.
        memory_limit: bytes or a text such as `"8GiB"` that the estimated peak of a
            step is to keep; the plan is the fastest that does. It needs a compiled
            model.
        segments: number of pieces from 2, of about the same size, or the names of the
            layers that each begin another piece. The last piece keeps its activations:
            they are needed at once.
        batch_size: samples in the batch that the bytes are estimated for, from 1; 32
            is what `fit` takes by default.
        input_shape: shape of the input without the batch axis, if the model leaves
            lengths open, as in `estimate_memory`.

    Raises:
        ConfigError: if no plan keeps the limit (the text says what could be had), or
            an argument is wrong.
        ModelError: if the model has no graph, is not built, cannot be copied, or was
            made by `compress_activations`: there is one way or the other.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(8, activation="relu") for _ in range(6)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> model.compile("sgd", "mse")
        >>> lean = rematerialize(model, segments=3)
        >>> [len(piece.layers) for piece in plan_of(lean).pieces]
        [2, 2, 2]
    """
    _check(model, memory_limit, segments, batch_size)
    check_graph(model)
    check_one_policy(model, "rematerialize")
    request = checked_request(
        model,
        batch_size,
        optimizer=None if model.compiled else keras.optimizers.SGD(),
        device=device_kind(),
        input_shape=input_shape,  # as the user names the inputs
    )
    lean = same_draws(clone(model), model)
    step = recorded_step(replace(request, model=lean))
    if segments is not None:
        choice = by_segments(step, segments)
    else:
        limit = None if memory_limit is None else parse_bytes(memory_limit)
        choice = by_limit(step, limit)
        if limit is None:
            _warn_if_little(choice.plan)
    apply(lean, step.path, choice.pieces)
    _PLANS[lean] = choice.plan
    return lean


def plan_of(model: Model) -> Rematerialization | None:
    """Return the plan of a model that `rematerialize` made, None of any other."""
    return _PLANS.get(model)


def _warn_if_little(plan: Rematerialization) -> None:
    if plan.saved_bytes < _LEAST_SHARE * plan.plain_peak_bytes:
        warnings.warn(
            "To compute activations again hardly pays here. "
            f"{str(plan).splitlines()[0]} Next: train the model as it is, or pass "
            "the batch_size= that it is trained with; km.estimate_memory(model, "
            "batch_size).table() says what else fills the peak.",
            KerasMemWarning,
            stacklevel=3,
        )


def _check(model: Model, memory_limit: Any, segments: Any, batch_size: Any) -> None:
    check_built(model)
    batch_size = Whole(1).check("rematerialize", "batch_size", batch_size)
    if memory_limit is not None and segments is not None:
        raise ConfigError(
            "Either a limit or segments decide what is computed again. Expected: one "
            f"of the two. Received: memory_limit={memory_limit!r} and "
            f"segments={segments!r}."
        )
    if memory_limit is not None and not model.compiled:
        raise ModelError(
            "A limit is for a whole step, with the optimizer's state. Expected: a "
            f"compiled model. Received: model={model.name!r}, not compiled. Next: "
            "compile it, or pass segments=."
        )


def apply(model: Model, path: Path, pieces: Pieces) -> None:
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
    set_policy(model, policy_for(model, path, pieces))


def policy_for(model: Model, path: Path, pieces: Pieces) -> ActivationPolicy:
    """Return how a model would train by a plan; the model stays as it is.

    Args:
        model: the model.
        path: where the model inside of it is that is cut.
        pieces: ranges of that one's calls, each computed again as one.
    """
    recomputed_segments = [
        RecomputedSegment(segment.nodes, Residuals.ALL)
        for segment, again in _segments(main_part(model, path), pieces)
        if again
    ]
    settings = {"path": list(path), "pieces": [list(piece) for piece in pieces]}
    return ActivationPolicy(
        "rematerialize", apply_again, settings, tuple(recomputed_segments)
    )


def _segments(part: Any, pieces: Pieces) -> Iterator[tuple[Segment, bool]]:
    starts = sorted({place for piece in pieces for place in piece} - {0})
    again = {start for start, _ in pieces}
    at = 0
    for segment in cut(part, starts):
        yield segment, at in again
        at += len(segment.nodes)


def apply_again(model: Model, settings: Mapping[str, Any]) -> None:
    """Let a model that was made anew train as the one with this plan."""
    pieces: Sequence[Sequence[int]] = settings["pieces"]
    apply(model, tuple(settings["path"]), tuple((a, b) for a, b in pieces))


def _recomputed(model: Model, function: Function) -> Function:
    # Whether XLA compiles the step is known once it is traced.
    is_compiled = model.compiled and bool(model.jit_compile)
    return current().recomputed(function, compiled=is_compiled)
