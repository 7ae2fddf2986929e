"""Training with activations in eight bits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

from kerasmem.backends import current
from kerasmem.backends.recompute import ArgumentStore, Function
from kerasmem.checks import PATTERNS, Checked, Whole
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    RecomputedSegment,
    check_one_policy,
    policy_of,
    set_policy,
)
from kerasmem.graph.clone import clone, same_draws
from kerasmem.graph.layers import check_built, nodes_in_order, own_graph
from kerasmem.graph.segments import recompute
from kerasmem.memory.compress_activations.plan import GraphPlan, plan
from kerasmem.memory.compress_activations.store import PackedStore
from kerasmem.types import Model, Operation

_NAME = "compress_activations"


@dataclass(frozen=True)
class ActivationCompression(Checked):
    """What a user chose.

    Args:
        include: names of layers, or regular expressions for whole names; None for all.
        exclude: likewise, layers that are left alone.
        seed: of the rounding, from 0.
    """

    include: Annotated[Any, PATTERNS] | None
    exclude: Annotated[Any, PATTERNS]
    seed: Annotated[int, Whole(0)]

    def chosen(self, operation: Operation) -> bool:
        """Return whether the layer or operation is compressed."""
        name = operation.name
        is_included = self.include is None or _matches(name, self.include)
        return is_included and not _matches(name, self.exclude)

    def check(self, model: Model) -> None:
        """Raise a ConfigError if a name or pattern matches nothing in `model`."""
        names = _names(model)
        for pattern in (*(self.include or ()), *self.exclude):
            if not any(_matches(name, (pattern,)) for name in names):
                raise ConfigError(
                    "`include` and `exclude` name layers of the model. Received: "
                    f"{pattern!r}, which matches none of {sorted(names)[:10]}."
                )


def _names(model: Model) -> set[str]:
    names: set[str] = set()
    for node in nodes_in_order(own_graph(model)):
        names.add(node.operation.name)
        if own_graph(node.operation) is not None:
            names |= _names(node.operation)
    return names


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def compress_activations(
    model: Model,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    bits: int = 8,
    seed: int = 0,
) -> Any:
    """Compress activations: return a copy of `model` that keeps them in 8 bits.

    What the backward pass needs of the forward pass waits for it as 8-bit codes, up to
    256 to a scale, rounded at random so that it is right on average; cheap operations
    such as batch normalization or ReLU are computed again instead. Inference is as
    ever, and so is what is saved. `kerasmem.memory.activation_report` tells the bytes
    and by how much the gradient moves.

    Returns:
        The copy, with the weights and settings of `model` and an optimizer that starts
        anew.

    Sources: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit
    Activation Compressed Training", 2021; Liu et al., "GACT: Activation Compressed
    Training for Generic Network Architectures", 2022.

    Args:
        model: a built Sequential or Functional model; models may be nested in it. It is
            not changed.
        include: names of layers, or regular expressions for whole names, that are
            compressed; None for all.
        exclude: likewise, layers that are left alone.
        bits: of a code; 8 is the only number.
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
    Whole(8, 8).check("compress_activations", "bits", bits)
    check_built(model)
    if own_graph(model) is None:
        raise ModelError(
            "Activations can be compressed only where the graph of the model is known. "
            "Expected: a Sequential or Functional model. Received: "
            f"{type(model).__name__} {model.name!r}, a subclassed model. Next: write "
            "it with keras.Input and keras.Model, or compress a model inside of it."
        )
    settings = ActivationCompression(include, exclude, seed)
    settings.check(model)
    check_one_policy(model, _NAME)
    copy = same_draws(clone(model), model)
    compress_in_place(copy, settings)
    return copy


def compress_in_place(model: Model, settings: ActivationCompression) -> None:
    """Let `model` itself train with compressed activations from now on.

    Raises:
        ModelError: if no activation is worth it.
    """
    plans = _plans(model, settings)
    for graph in plans:
        segments = [
            (step.segment, step.store and partial(_recomputed, model, step.store))
            for step in graph.steps
        ]
        recompute(graph.model, segments)
    set_policy(model, _policy(plans, settings))


def default_policy(model: Model) -> ActivationPolicy:
    """Return how `compress_activations(model)` would train; the model stays as it is.

    Raises:
        ModelError: if no activation is worth it.
    """
    settings = ActivationCompression(None, (), 0)
    return _policy(_plans(model, settings), settings)


def _plans(model: Model, settings: ActivationCompression) -> list[GraphPlan]:
    plans = plan(model, settings.chosen, settings.seed)
    stores = [step.store for graph in plans for step in graph.steps]
    if not any(isinstance(store, PackedStore) and store.packed for store in stores):
        raise ModelError(
            f"No activation of the model {model.name!r} can be stored in fewer bytes. "
            "Expected: between its layers, 32 or more floats of at most 32 bits a "
            "sample. Next: see `include` and `exclude`, or train it as it is."
        )
    return plans


def _policy(
    plans: Sequence[GraphPlan], settings: ActivationCompression
) -> ActivationPolicy:
    segments = tuple(
        RecomputedSegment(step.segment.nodes, step.store.residuals)
        for graph in plans
        for step in graph.steps
        if step.store is not None
    )
    return ActivationPolicy(_NAME, apply_again, asdict(settings), segments)


def apply_again(model: Model, settings: Mapping[str, Any]) -> None:
    """Let a model that was made anew train as the one with these settings."""
    compress_in_place(model, _settings_from(settings))


def _settings_from(plain: Mapping[str, Any]) -> ActivationCompression:
    return ActivationCompression(plain["include"], plain["exclude"], plain["seed"])


def settings_of(model: Model) -> ActivationCompression:
    """Return the settings that a model was compressed with.

    Raises:
        ModelError: if it was not.
    """
    policy = policy_of(model)
    if policy is None or policy.function != _NAME:
        raise ModelError(
            "A model that trains as ever has no report of compressed activations. "
            "Expected: a model from `compress_activations`. Received: "
            f"{model.name!r}."
        )
    return _settings_from(policy.settings)


def _recomputed(model: Model, store: ArgumentStore, function: Function) -> Function:
    # Whether XLA compiles the step is known once it is traced.
    return current().recomputed(
        function, store, compiled=model.compiled and bool(model.jit_compile)
    )
