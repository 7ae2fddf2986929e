"""Training with activations in eight bits."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from kerasmem.backends import current
from kerasmem.backends.recompute import Function, Store
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    RecomputedSegment,
    Residuals,
    check_one_policy,
    set_policy,
)
from kerasmem.graph.clone import clone, same_draws
from kerasmem.graph.layers import own_graph
from kerasmem.graph.segments import recompute
from kerasmem.memory.compress_activations.plan import GraphPlan, Settings, plan
from kerasmem.memory.compress_activations.store import EmptyStore, PackedStore
from kerasmem.memory.estimate.checks import check_model

_SETTINGS: WeakKeyDictionary[Any, Settings] = WeakKeyDictionary()


def compress_activations(
    model: Any,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    bits: int = 8,
    seed: int = 0,
) -> Any:
    """Return a copy of `model` that trains with activations in eight bits.

    What the backward pass needs of the forward pass waits for it as 8-bit codes, up to
    256 to a scale, rounded at random so that it is right on average; cheap operations
    such as batch normalization or ReLU are computed again instead. Inference is as
    ever, and so is what is saved. `kerasmem.memory.activation_report` tells the bytes
    and by how much the gradient moves.

    Sources: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit
    Activation Compressed Training", 2021; Liu et al., "GACT: Activation Compressed
    Training for Generic Network Architectures", 2022.

    Args:
        model: a built Sequential or Functional model; models may be nested in it. The
            copy has its weights and settings, and an optimizer that starts anew.
        include: names of layers, or regular expressions for whole names, that are
            compressed; None for all.
        exclude: likewise, layers that are left alone.
        bits: 8.
        seed: of the rounding, from 0.

    Raises:
        ConfigError: if an argument cannot be used, or a name matches no layer.
        ModelError: if the model has no graph, no activation that is worth it, or was
            made by `rematerialize`: there is one way or the other.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(64, activation="relu") for _ in range(3)]
        >>> model = keras.Sequential([keras.Input((64,)), *layers])
        >>> compressed = compress_activations(model)
        >>> compressed.count_params() == model.count_params()
        True
    """
    if bits != 8:
        raise ConfigError(
            "Activations are stored in 8 bits. Expected: bits=8. Received: "
            f"bits={bits!r}."
        )
    check_model(model)
    if own_graph(model) is None:
        raise ModelError(
            "Activations can be compressed only where the graph of the model is known. "
            "Expected: a Sequential or Functional model. Received: "
            f"{type(model).__name__} {model.name!r}, a subclassed model. Next: write "
            "it with keras.Input and keras.Model, or compress a model inside of it."
        )
    included = None if include is None else _listed(include)
    settings = Settings(included, _listed(exclude), seed)
    settings.check(model)
    check_one_policy(model, "compress_activations")
    copy = same_draws(clone(model), model)
    compress_in_place(copy, settings)
    return copy


def compress_in_place(model: Any, settings: Settings) -> None:
    """Let `model` itself train with compressed activations from now on.

    Raises:
        ModelError: if no activation is worth it.
    """
    plans = _plans(model, settings)
    for graph in plans:
        treated = [
            (step.segment, step.store and partial(_recomputed, model, step.store))
            for step in graph.steps
        ]
        recompute(graph.model, treated)
    _SETTINGS[model] = settings
    set_policy(model, _policy(plans, settings))


def treatment_by_default(model: Any) -> ActivationPolicy:
    """Return how `compress_activations(model)` would train; the model stays as it is.

    Raises:
        ModelError: if no activation is worth it.
    """
    settings = Settings(None, (), 0)
    return _policy(_plans(model, settings), settings)


def _plans(model: Any, settings: Settings) -> list[GraphPlan]:
    plans = plan(model, settings.chosen, settings.seed)
    stores = [step.store for graph in plans for step in graph.steps]
    if not any(isinstance(store, PackedStore) and store.packed for store in stores):
        raise ModelError(
            f"No activation of the model {model.name!r} can be stored in fewer bytes. "
            "Expected: between its layers, 32 or more floats of at most 32 bits a "
            "sample. Next: see `include` and `exclude`, or train it as it is."
        )
    return plans


def _policy(plans: Sequence[GraphPlan], settings: Settings) -> ActivationPolicy:
    pieces = [
        RecomputedSegment(step.segment.nodes, _residuals(step.store))
        for graph in plans
        for step in graph.steps
        if step.store is not None
    ]
    return ActivationPolicy(
        "compress_activations", apply_again, asdict(settings), tuple(pieces)
    )


def apply_again(model: Any, settings: Mapping[str, Any]) -> None:
    """Let a model that was made anew train as the one with these settings."""
    include = settings["include"]
    included = None if include is None else tuple(include)
    exclude = tuple(settings["exclude"])
    compress_in_place(model, Settings(included, exclude, settings["seed"]))


def _residuals(store: PackedStore | EmptyStore) -> Residuals:
    return (
        Residuals.NO_FLOATS if isinstance(store, EmptyStore) else Residuals.EIGHT_BITS
    )


def is_compressed(model: Any) -> bool:
    """Return whether `compress_activations` made the model."""
    return model in _SETTINGS


def settings_of(model: Any) -> Settings:
    """Return the settings that a model was compressed with.

    Raises:
        ModelError: if it was not.
    """
    if model not in _SETTINGS:
        raise ModelError(
            "A model that trains as ever has no report of compressed activations. "
            "Expected: a model from `compress_activations`. Received: "
            f"{model.name!r}."
        )
    return _SETTINGS[model]


def _recomputed(model: Any, store: Store, function: Function) -> Function:
    # Whether XLA compiles the step is known once it is traced.
    return current().recomputed(
        function, store, compiled=model.compiled and bool(model.jit_compile)
    )


def _listed(patterns: str | Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)
