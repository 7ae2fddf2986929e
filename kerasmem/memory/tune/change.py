"""A question about a model as compiled, changed by one option."""

import warnings
from dataclasses import replace
from typing import Any

import keras

from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.memory.estimate.checks import compiles, scaled_if_half
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.measure.batch import with_batch_size
from kerasmem.memory.rematerialize import rematerialize
from kerasmem.memory.tune.variants import Variant


def changed(request: Request, variant: Variant) -> Request:
    """Return the question for `variant`.

    Raises:
        ConfigError: if the model, its optimizer or its batch cannot do it.
        ModelError: if the model has no graph, of which pieces could be computed again.
    """
    if variant.rematerialized:
        request = _rematerialized(request)
    if variant.jit_compile is not None:
        request = _with_jit(request, jit_compile=variant.jit_compile)
    if variant.dtype_policy is not None:
        request = _with_policy(request, variant.dtype_policy)
    if variant.steps_per_update > 1:
        request = _accumulating(request, variant.steps_per_update)
    if request.batch_size % variant.devices:
        raise ConfigError(
            f"A batch of {request.batch_size} does not divide by {variant.devices} "
            "devices."
        )
    return request


def _rematerialized(request: Request) -> Request:
    # In order: a copy's inputs may have other names.
    shapes = [x.shape[1:] for x in request.inputs]
    with warnings.catch_warnings():
        # That it hardly pays is what the table says.
        warnings.simplefilter("ignore", KerasMemWarning)
        lean = rematerialize(
            request.model, batch_size=request.batch_size, input_shape=shapes
        )
    return replace(request, model=lean)


def _with_jit(request: Request, *, jit_compile: bool) -> Request:
    possible = compiles(
        request.model, request.backend, request.device, asked=jit_compile
    )
    if jit_compile and not possible:
        raise ConfigError("A layer of the model cannot be compiled.")
    return replace(request, jit_compile=jit_compile)


def _with_policy(request: Request, policy: str) -> Request:
    optimizer: Any = request.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    optimizer = scaled_if_half(request.model, optimizer, policy)
    return replace(request, dtype_policy=policy, optimizer=optimizer)


def _accumulating(request: Request, count: int) -> Request:
    if request.batch_size % count:
        raise ConfigError(
            f"A batch of {request.batch_size} does not divide into {count}."
        )
    optimizer: Any = request.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = keras.optimizers.LossScaleOptimizer(
            _accumulator(optimizer.inner_optimizer, count),
            initial_scale=optimizer.initial_scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
        )
    else:
        optimizer = _accumulator(optimizer, count)
    smaller = with_batch_size(request, request.batch_size // count)
    return replace(smaller, optimizer=optimizer)


def _accumulator(optimizer: Any, count: int) -> Any:
    """Return an optimizer of the same settings that accumulates."""
    settings = optimizer.get_config()
    already = settings.get("gradient_accumulation_steps")
    if already:
        raise ConfigError(f"The optimizer accumulates {already} batches already.")
    settings["gradient_accumulation_steps"] = count
    try:
        return type(optimizer).from_config(settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{type(optimizer).__name__} cannot accumulate gradients: {error}"
        ) from error
