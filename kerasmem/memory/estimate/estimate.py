"""The one function that says what a model will need."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from kerasmem.checks import BACKENDS, OneOf, Whole
from kerasmem.graph.layers import own_graph
from kerasmem.memory.estimate import analytic, checks, measured, traced
from kerasmem.memory.estimate.generation import check_generates
from kerasmem.memory.estimate.inputs import checked_inputs, example_labels
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.sharding import sharding_of
from kerasmem.memory.estimate.unbuilt import built_model
from kerasmem.optional import feature
from kerasmem.records import MemoryEstimate
from kerasmem.types import Dataset, Model, Optimizer


def _estimate_by_plan(request: Request) -> MemoryEstimate:
    return feature("estimate_by_plan")(request)


METHODS: Mapping[str, Callable[[Request], MemoryEstimate]] = {
    "analytic": analytic.estimate,
    "traced": traced.estimate,
    "plan": _estimate_by_plan,
    "measured": measured.estimate,
}
"""Cheapest first."""


def estimate_memory(  # noqa: PLR0913 - the public entry point
    model: Model,
    batch_size: int,
    *,
    optimizer: Optimizer | None = None,
    dtype_policy: Any | None = None,
    jit_compile: bool | None = None,
    backend: str | None = None,
    training: bool = True,
    device: str | None = None,
    method: str = "auto",
    input_shape: Any | None = None,
    data: Dataset | None = None,
    generate: int | None = None,
) -> MemoryEstimate:
    """Estimate the peak memory that `model` needs, and what fills it.

    Nothing runs on the device, and the model is not changed. Only `"measured"` runs
    steps, on the CPU. Under a `keras.distribution`, or of replicas, the bytes are those
    of each device.

    Args:
        model: a `keras.Model`. If it is not built, `input_shape` or `data` tells the
            shape of its inputs.
        batch_size: samples in the batch, from 1; of all devices together.
        optimizer: of a training step, an optimizer or its name; None for the compiled
            one.
        dtype_policy: a dtype policy or its name, assumed for the whole model; None for
            the layers' own.
        jit_compile: whether the step is compiled; None for what Keras would choose.
        backend: `"tensorflow"`, `"jax"` or `"torch"`; None for the running one.
        training: True for a training step, False for `predict`.
        device: `"gpu"` or `"cpu"`; or a card such as `"h200"`, which `"plan"` needs.
            None for `"gpu"`, and for `"cpu"` with `"measured"`, which needs it.
        method: `"analytic"` (from the model's graph, under two seconds), `"traced"`
            (from the step that the framework would run, in a child process), `"plan"`
            (of a compiled step, by XLA's own compiler for a card that need not be
            there, in 10 to 100 seconds; `pip install kerasmem[plans]`), `"measured"`
            (real steps with up to 16 samples of zeros on this machine's CPU, in a child
            process, extrapolated to `batch_size`; seconds to minutes; not on JAX), or
            `"auto"`: analytic where the model has a graph, else traced.
        input_shape: shape of the input without the batch axis, if the model leaves
            lengths open; one per input, by name or in order, if there are several.
        data: Example samples in any form that `fit` takes: `x`, `(x, y)`,
            `(x, y, sample_weight)`, a `tf.data.Dataset`. Lengths, labels and sample
            weights are read from them, for batches from the first one.
        generate: tokens of a sequence, prompt and all, that `generate` of a `CausalLM`
            of KerasHub makes, in the place of a training; None for none.

    Returns:
        The `MemoryEstimate`: the peak in bytes with its interval, and its parts by
        layer and category; `table()` shows it.

    Raises:
        ModelError: if the model cannot be built, its input shape is not known, or the
            method cannot do this model.
        ConfigError: if `model` is no `keras.Model`, or another argument is wrong.
        DataError: if the data does not fit the model.
        ChildDiedError: if the child process of `"traced"`, `"plan"` or `"measured"`
            ends by an error.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> estimate = estimate_memory(model, batch_size=8, optimizer="sgd")
        >>> estimate.by_category()["parameter"]
        40
    """
    OneOf(("auto", *METHODS)).check("estimate_memory", "method", method)
    if device is None:
        device = "cpu" if method == "measured" else "gpu"
    request = checked_request(
        model,
        batch_size,
        optimizer=optimizer,
        dtype_policy=dtype_policy,
        jit_compile=jit_compile,
        backend=backend,
        training=training,
        generate=generate,
        device=device,
        input_shape=input_shape,
        data=data,
    )
    if method == "auto":
        method = "traced" if own_graph(request.model) is None else "analytic"
    return METHODS[method](request)


def checked_request(  # noqa: PLR0913 - the arguments of the public entry points
    model: Model,
    batch_size: int,
    *,
    optimizer: Optimizer | None = None,
    dtype_policy: Any | None = None,
    jit_compile: bool | None = None,
    backend: str | None = None,
    training: bool = True,
    device: str = "gpu",
    input_shape: Any | None = None,
    data: Dataset | None = None,
    generate: int | None = None,
) -> Request:
    """Return the checked arguments of `estimate_memory`."""
    if not isinstance(model, keras.Model) or not model.built:
        model = built_model(model, input_shape, data)
    owner = "estimate_memory"
    batch_size = Whole(1).check(owner, "batch_size", batch_size)
    backend = keras.backend.backend() if backend is None else backend
    OneOf(BACKENDS).check(owner, "backend", backend)
    device, card = checks.checked_device(device)
    OneOf((True, False)).check(owner, "training", training)
    OneOf((None, True, False)).check(owner, "jit_compile", jit_compile)
    if generate is not None:
        generate = Whole(1).check(owner, "generate", generate)
        check_generates(model, generate)
        training = False
    policy = checks.checked_policy(dtype_policy)
    # Models have it on TensorFlow alone.
    strategy = getattr(model, "distribute_strategy", None)
    sharding = sharding_of(strategy, backend)
    compiles = checks.compiles if generate is None else checks.compiles_generation
    if training:
        optimizer = checks.checked_optimizer(model, optimizer, policy)
    return Request(
        model=model,
        inputs=checked_inputs(model, batch_size, input_shape, data, generate=generate),
        batch_size=batch_size,
        optimizer=optimizer if training else None,
        dtype_policy=policy,
        jit_compile=compiles(
            model, backend, device, asked=jit_compile, replicas=sharding.replicas
        ),
        generate=generate,
        backend=backend,
        training=training,
        device=device,
        card=card,
        sharding=sharding,
        labels=None if data is None else example_labels(model, data, batch_size),
    )
