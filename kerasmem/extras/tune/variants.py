"""The options to try, and a training request changed to one of them."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem import backends
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.graph.activation_policy import policy_of
from kerasmem.memory.estimate.checks import compiles, scaled_if_half
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.plan import rematerialize
from kerasmem.types import Optimizer

_POLICIES = ("mixed_float16", "mixed_bfloat16")
_ACCUMULATIONS = (2, 4)
_DATA_PARALLEL = {
    "tensorflow": "create and compile the model in "
    "tf.distribute.MirroredStrategy().scope()",
    "jax": "keras.distribution.set_distribution(keras.distribution.DataParallel())",
}


@dataclass(frozen=True)
class Variant:
    """One way to train. None means as compiled.

    Args:
        name: Name of the option for the user.
        how: Code that sets the option.
        jit_compile: Whether to compile the step.
        dtype_policy: Policy for each layer that has the model's own policy.
        left_out: Pass of the graph optimizer to disable.
        rematerialized: Whether to rematerialize with the lowest estimated peak.
        steps_per_update: Number of smaller batches per batch.
        devices: Number of devices that share the batch.
    """

    name: str
    how: str = ""
    jit_compile: bool | None = None
    dtype_policy: str | None = None
    left_out: str | None = None
    rematerialized: bool = False
    steps_per_update: int = 1
    devices: int = 1


AS_COMPILED = Variant("as compiled")


def variants(request: Request, devices: int) -> tuple[Variant, ...]:
    """Return the options to try in addition to `AS_COMPILED`."""
    jit, size = not request.jit_compile, request.batch_size
    how = f"model.compile(..., jit_compile={jit})"
    options = [Variant(f"jit {'on' if jit else 'off'}", how, jit_compile=jit)]
    for policy in _POLICIES:
        if policy != request.model.dtype_policy.name:
            how = f"keras.config.set_dtype_policy({policy!r}) before creating the model"
            options.append(Variant(policy, how, dtype_policy=policy))
    for name, key in backends.current().step_options().graph_passes.items():
        how = f"tf.config.optimizer.set_experimental_options({{{key!r}: False}})"
        options.append(Variant(f"{name} off", how, left_out=name))
    if policy_of(request.model) is None:
        how = f"km.rematerialize(model, batch_size={size})"
        options.append(Variant("rematerialized", how, rematerialized=True))
    for count in (n for n in _ACCUMULATIONS if n <= size):
        how = f"batch_size={size // count} and an optimizer with "
        how += f"gradient_accumulation_steps={count}"
        name = f"accumulation, {count} batches"
        options.append(Variant(name, how, steps_per_update=count))
    # Keras on torch needs one process per device.
    if devices > 1 and request.backend in _DATA_PARALLEL:
        how, name = _DATA_PARALLEL[request.backend], f"data parallel, {devices} devices"
        options.append(Variant(name, how, devices=devices))
    return tuple(options)


def changed(request: Request, variant: Variant) -> Request:
    """Return the request for `variant`.

    Raises:
        ConfigError: If the model, its optimizer or its batch does not support it.
        ModelError: If the model has no graph to rematerialize.
    """
    if variant.rematerialized:
        request = _with_less_kept(request)
    if variant.jit_compile is not None:
        request = _with_jit(request, jit_compile=variant.jit_compile)
    if variant.dtype_policy is not None:
        request = _with_policy(request, variant.dtype_policy)
    if variant.steps_per_update > 1:
        request = _accumulating(request, variant.steps_per_update)
    if request.batch_size % variant.devices:
        raise ConfigError(
            f"Expected a batch size divisible by {variant.devices} devices. "
            f"Received: batch_size={request.batch_size}."
        )
    return request


def _with_less_kept(request: Request) -> Request:
    # By position: the inputs of a copy may have other names.
    shapes = [x.shape[1:] for x in request.inputs]
    with warnings.catch_warnings():
        # The table already shows that rematerialization saves little.
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
    optimizer = scaled_if_half(optimizer, policy)
    return replace(request, dtype_policy=policy, optimizer=optimizer)


def _accumulating(request: Request, count: int) -> Request:
    if request.batch_size % count:
        raise ConfigError(
            f"Expected a batch size divisible by {count}. "
            f"Received: batch_size={request.batch_size}."
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
    smaller = request.with_batch_size(request.batch_size // count)
    return replace(smaller, optimizer=optimizer)


def _accumulator(optimizer: Optimizer, count: int) -> Any:
    settings = optimizer.get_config()
    already = settings.get("gradient_accumulation_steps")
    if already:
        raise ConfigError(f"The optimizer already accumulates {already} batches.")
    settings["gradient_accumulation_steps"] = count
    try:
        return type(optimizer).from_config(settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{type(optimizer).__name__} cannot accumulate gradients: {error}"
        ) from error
