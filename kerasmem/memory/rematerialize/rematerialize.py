"""Rematerialization: recompute segments of a model in the backward pass."""

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

_LEAST_SHARE = 0.05  # minimum reduction of the peak, since estimates are no better

_PLANS: WeakKeyDictionary[Any, Rematerialization] = WeakKeyDictionary()


def rematerialize(
    model: Model,
    *,
    memory_limit: int | str | None = None,
    segments: int | Sequence[str] | None = None,
    batch_size: int = 32,
    input_shape: Any | None = None,
) -> Any:
    """Return a copy of `model` that trains in less memory by rematerialization.

    The copy trains to the same weights. In segments of the model, activations are not
    saved for the backward pass but recomputed from the inputs of the segment (gradient
    checkpointing). The copy is a normal Keras model. It saves and loads like `model`,
    and a loaded model trains without rematerialization. Inference does not change. The
    copy has a new optimizer state.

    Without `memory_limit` and `segments`, the plan with the lowest estimated peak is
    used. A warning is issued if that peak is less than 5 % lower. `plan_of(copy)`
    returns the plan and its estimated cost.

    Returns:
        The copy, compiled like `model`, with a new optimizer state.

    Source: Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory
    Cost", 2016.

    Args:
        model: Built Sequential or Functional model. If a nested model has most of the
            activations, that nested model is cut.
        memory_limit: Int or string. Maximum estimated peak of a step, in bytes or as a
            size such as `"8GiB"`. The fastest plan within the limit is used. Needs a
            compiled model. Defaults to None.
        segments: Int >= 2, the number of pieces of similar size. Or a list of the names
            of layers that start a new piece. The last piece saves its activations,
            because they are needed immediately. Defaults to None.
        batch_size: Int >= 1. Batch size of the estimates. Defaults to 32, as in `fit`.
        input_shape: Shape of the input without the batch axis, for models with open
            lengths. See `estimate_memory`. Defaults to None.

    Raises:
        ConfigError: If no plan is within the limit (the message contains the lowest
            peak), or an argument is invalid.
        ModelError: If the model has no graph, is not built, cannot be copied, or
            already has compressed activations.

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
        input_shape=input_shape,  # uses the input names of the original model
    )
    lean = same_draws(clone(model), model)
    step = recorded_step(replace(request, model=lean))
    if segments is not None:
        choice = by_segments(step, segments)
    else:
        limit = None
        if memory_limit is not None:
            limit = parse_bytes(memory_limit, "rematerialize", "memory_limit")
        choice = by_limit(step, limit)
        if limit is None:
            _warn_if_little(choice.plan)
    apply(lean, step.path, choice.pieces)
    _PLANS[lean] = choice.plan
    return lean


def plan_of(model: Model) -> Rematerialization | None:
    """Return the plan of a rematerialized model, or None for other models."""
    return _PLANS.get(model)


def _warn_if_little(plan: Rematerialization) -> None:
    if plan.saved_bytes < _LEAST_SHARE * plan.plain_peak_bytes:
        warnings.warn(
            "Rematerialization saves little here. "
            f"{str(plan).splitlines()[0]} Next: train the original model, or pass "
            "the batch_size= of the training. km.estimate_memory(model, "
            "batch_size).table() shows the other parts of the peak.",
            KerasMemWarning,
            stacklevel=3,
        )


def _check(model: Model, memory_limit: Any, segments: Any, batch_size: Any) -> None:
    check_built(model)
    batch_size = Whole(1).check("rematerialize", "batch_size", batch_size)
    if memory_limit is not None and segments is not None:
        raise ConfigError(
            "Expected either memory_limit or segments. "
            f"Received: memory_limit={memory_limit!r} and "
            f"segments={segments!r}."
        )
    if memory_limit is not None and not model.compiled:
        raise ModelError(
            "A memory limit includes the optimizer's state. Expected: a "
            f"compiled model. Received: model={model.name!r}, not compiled. Next: "
            "compile it, or pass segments=."
        )


def apply(model: Model, path: Path, pieces: Pieces) -> None:
    """Apply a plan to a model in place."""
    part = main_part(model, path)
    run = partial(_recomputed, model)
    recompute(
        part, [(s, run if again else None) for s, again in _segments(part, pieces)]
    )
    set_policy(model, policy_for(model, path, pieces))


def policy_for(model: Model, path: Path, pieces: Pieces) -> ActivationPolicy:
    """Return the policy of a plan without changing the model."""
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
    """Apply the plan to a model that was created again."""
    pieces: Sequence[Sequence[int]] = settings["pieces"]
    apply(model, tuple(settings["path"]), tuple((a, b) for a, b in pieces))


def _recomputed(model: Model, function: Function) -> Function:
    # `jit_compile` is only known when the step is traced.
    is_compiled = model.compiled and bool(model.jit_compile)
    return current().recomputed(function, compiled=is_compiled)
