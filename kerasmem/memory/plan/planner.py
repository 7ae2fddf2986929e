"""Plans the memory of a training step: `plan_memory` and `rematerialize`."""

import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import keras

from kerasmem.backends import device_kind
from kerasmem.checks import OneOf, Whole, invalid
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.activation_policy import assumed_policy, check_one_policy
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.layers import check_built, has_batch_statistics
from kerasmem.graph.rebuild import no_garbage_collection
from kerasmem.memory.estimate.estimate import METHODS, checked_request
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.plan.apply import NAME
from kerasmem.memory.plan.contents import offers_for, option_for, plan_for
from kerasmem.memory.plan.memory_plan import MemoryPlan
from kerasmem.memory.plan.offers import (
    smaller_batches,
)
from kerasmem.memory.plan.search import (
    CHOICES,
    EIGHT_BITS,
    MICRO_BATCHES,
    RECOMPUTE,
    Search,
    requested,
)
from kerasmem.memory.plan.steps import Strategy
from kerasmem.types import Model
from kerasmem.units import format_bytes, parse_bytes

_LEAST_SHARE = 0.05  # minimum reduction of the peak, since estimates are no better
_METHODS = ("analytic", "traced", "measured")
_CHECKS = 5
"""Number of plans to check by a slow method."""
_SMALLER = 0.9
"""Peak of the next smaller plan, relative to the plan, at most."""


def plan_memory(
    model: Model,
    batch_size: int,
    memory_limit: int | str,
    *,
    choices: Iterable[str] = CHOICES,
    input_shape: Any | None = None,
    method: str = "analytic",
) -> MemoryPlan:
    """Plan a training step within a memory limit, in the least estimated time.

    The plan recomputes activations in the backward pass, stores them in 8 bits, or
    splits batches into micro-batches. Batches of models with
    `BatchNormalization` are only split if nothing else fits, because the statistics
    would differ. Other optimizers and mixed precision change the training: the plan
    contains their estimated peaks as `offers`.

    Returns:
        The plan. `plan.apply(model)` returns a copy that trains by the plan, and
        `print(plan)` shows it. `kerasmem.fit(model, x, y, memory_limit=...)` plans and
        trains in one call.

    Sources: Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory
    Cost", 2016; Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit
    Activation Compressed Training", 2021.

    Args:
        model: Compiled model. A subclassed model may use only layers and `keras.ops`
            in its `call`.
        batch_size: Int >= 1. Samples per update.
        memory_limit: Int or string. Maximum estimated peak of a step, in bytes or as a
            size such as `"8GiB"`.
        choices: Permitted strategies: `"recompute"`, `"8 bits"` and `"micro-batches"`.
            Defaults to all.
        input_shape: Shape of the input without the batch axis, for models with open
            lengths. See `estimate_memory`. Defaults to None.
        method: `"analytic"`, `"traced"` or `"measured"` (on a CPU only). How to
            estimate the peak of the plan, see `estimate_memory`. The last two run in
            child processes, and the search is repeated until a plan fits by the
            method. Defaults to `"analytic"`.

    Raises:
        ConfigError: If no plan is within the limit (the message contains the lowest
            peak), or an argument is invalid.
        ModelError: If the model is not compiled, its calls cannot be recorded, or it
            already trains by a plan.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(64, activation="relu") for _ in range(8)]
        >>> model = keras.Sequential([keras.Input((64,)), *layers])
        >>> model.compile("sgd", "mse")
        >>> plan = plan_memory(model, 4096, "8MiB")
        >>> plan.peak_bytes <= 8 * 2**20 < plan.plain_peak_bytes
        True
    """
    check_built(model)
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        valid = f"a list with any of {', '.join(map(repr, CHOICES))}"
        raise invalid("plan_memory", "choices", choices, valid)
    choices = tuple(dict.fromkeys(choices))
    for name in choices:
        OneOf(CHOICES).check("plan_memory", "choices", name)
    OneOf(_METHODS).check("plan_memory", "method", method)
    limit_bytes = parse_bytes(memory_limit, "plan_memory", "memory_limit")
    Whole(1).check("plan_memory", "batch_size", batch_size)
    _check_compiled(model)
    check_one_policy(model, "plan_memory")
    request = checked_request(
        model, batch_size, device=device_kind(), input_shape=input_shape
    )
    if smaller_batches(model) is not None or fixed_batch(model) is not None:
        choices = tuple(name for name in choices if name != MICRO_BATCHES)
    return planned(request, limit_bytes, choices, method)


def planned(
    request: Request,
    limit_bytes: int,
    choices: Sequence[str],
    method: str = "analytic",
) -> MemoryPlan:
    """Return the fastest plan within a limit.

    Raises:
        ConfigError: If no plan is within the limit.
        ModelError: If the calls of the model cannot be recorded.
    """
    with no_garbage_collection():
        search = Search(request, choices)
        may_split = search.splits
        search.splits = may_split and not has_batch_statistics(request.model)
        plain_bytes = _peak_by(method, search, Strategy())
        search.correct(Strategy(), plain_bytes / search.plain.peak_bytes)
        strategy, peak_bytes = _fitting(search, limit_bytes, method)
        if peak_bytes > limit_bytes and may_split and not search.splits:
            search.splits = True
            strategy, peak_bytes = _fitting(search, limit_bytes, method)
        if peak_bytes > limit_bytes:
            raise _refusal(search, limit_bytes, peak_bytes, plain_bytes)
        faster = search.faster(strategy)
        smaller = search.fastest(int(_SMALLER * peak_bytes))
        return replace(
            plan_for(search, strategy),
            peak_bytes=peak_bytes,
            plain_peak_bytes=plain_bytes,
            faster=faster and option_for(search, faster),
            smaller=smaller and option_for(search, smaller),
            offers=tuple(offers_for(search, strategy, peak_bytes)),
        )


class NoPlanError(ConfigError):
    """No plan is within the limit. `lowest_bytes` is the lowest estimated peak."""

    def __init__(self, message: str, lowest_bytes: int) -> None:
        super().__init__(message)
        self.lowest_bytes = lowest_bytes


def _refusal(
    search: Search, limit_bytes: int, lowest_bytes: int, plain_bytes: int
) -> NoPlanError:
    choices = search.choices
    ways = f" with {' and '.join(choices)}" if choices else " without a choice"
    other = " The `choices` of plan_memory permit other changes."
    return NoPlanError(
        f"No plan{ways} is within the limit at batch size {search.request.batch_size}. "
        f"Expected: from {format_bytes(lowest_bytes)}, the lowest estimated peak "
        f"({format_bytes(plain_bytes)} without a plan). Received: "
        f"memory_limit={format_bytes(limit_bytes)}. Next: "
        "pass a higher limit or a smaller batch_size."
        f"{'' if {RECOMPUTE, EIGHT_BITS} <= {*choices} else other}",
        lowest_bytes,
    )


def _fitting(search: Search, limit_bytes: int, method: str) -> tuple[Strategy, int]:
    """Return the fastest strategy that fits by a method, and its peak.

    If none is found, this is the strategy with the lowest peak.
    """
    peaks: dict[Strategy, int] = {}
    for _ in range(_CHECKS):
        strategy = search.fastest(limit_bytes) or search.lowest()
        if strategy in peaks:
            break
        estimated_bytes = search.figures(strategy).peak_bytes
        peaks[strategy] = _peak_by(method, search, strategy)
        if peaks[strategy] <= limit_bytes:
            return strategy, peaks[strategy]
        least = 1.02 if estimated_bytes <= limit_bytes else 0.0
        search.correct(strategy, max(peaks[strategy] / estimated_bytes, least))
    lowest = min(peaks, key=lambda one: peaks[one])
    return lowest, peaks[lowest]


def _peak_by(method: str, search: Search, strategy: Strategy) -> int:
    """Return the peak of a changed step by a method of `estimate_memory`."""
    if method == "analytic":
        return search.figures(strategy).peak_bytes
    plan, own = plan_for(search, strategy), search.request
    step = own.with_batch_size(-(-own.batch_size // strategy.micro_batches))
    how = nullcontext()
    if plan.changes_activations:
        how = assumed_policy(own.model, plan.policy(own.model))
    with how:
        peak_bytes = METHODS[method](step).peak_bytes
    return peak_bytes + search.beside_parts(strategy)


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
        model: Built model. A subclassed model may use only layers and `keras.ops` in
            its `call`. If a nested model has most of the activations, it is cut.
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
        ModelError: If the calls of the model cannot be recorded, it is not built,
            cannot be copied, or already has compressed activations.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(8, activation="relu") for _ in range(6)]
        >>> model = keras.Sequential([keras.Input((8,)), *layers])
        >>> model.compile("sgd", "mse")
        >>> from kerasmem.memory.plan import plan_of
        >>> lean = rematerialize(model, segments=3)
        >>> [len(piece.layers) for piece in plan_of(lean).pieces]
        [2, 2, 2]
    """
    _check(model, memory_limit, segments, batch_size)
    check_one_policy(model, NAME)
    request = checked_request(
        model,
        batch_size,
        optimizer=None if model.compiled else keras.optimizers.SGD(),
        device=device_kind(),
        input_shape=input_shape,
    )
    if memory_limit is not None:
        limit_bytes = parse_bytes(memory_limit, "rematerialize", "memory_limit")
        return planned(request, limit_bytes, (RECOMPUTE,)).apply(model)
    if segments is not None:
        search = Search(request, (RECOMPUTE,))
        return plan_for(search, requested(search.step, segments)).apply(model)
    plan = lowest_plan(request, RECOMPUTE)
    if plan.saved_bytes < _LEAST_SHARE * plan.plain_peak_bytes:
        warnings.warn(
            "Rematerialization saves little here. "
            f"{plan.sentences()[0]} Next: train the original model, or pass "
            "the batch_size= of the training. km.estimate_memory(model, "
            "batch_size).table() shows the other parts of the peak.",
            KerasMemWarning,
            stacklevel=2,
        )
    return plan.apply(model)


def lowest_plan(request: Request, way: str) -> MemoryPlan:
    """Return the plan with the lowest peak by one of `CHOICES`."""
    with no_garbage_collection():
        search = Search(request, (way,))
        return plan_for(search, search.lowest())


def _check(model: Model, memory_limit: Any, segments: Any, batch_size: Any) -> None:
    check_built(model)
    Whole(1).check("rematerialize", "batch_size", batch_size)
    if memory_limit is not None and segments is not None:
        raise ConfigError(
            "Expected either memory_limit or segments. "
            f"Received: memory_limit={memory_limit!r} and "
            f"segments={segments!r}."
        )
    if memory_limit is not None:
        _check_compiled(model)


def _check_compiled(model: Model) -> None:
    if not model.compiled:
        raise ModelError(
            "A memory limit includes the optimizer's state. Expected: a "
            f"compiled model. Received: model={model.name!r}, not compiled. Next: "
            "compile it. rematerialize(model, segments=) needs no compiled model."
        )
