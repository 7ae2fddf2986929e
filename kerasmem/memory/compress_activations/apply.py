"""Training with 8-bit activations."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from kerasmem.checks import PATTERNS, Checked, Whole, invalid
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    check_one_policy,
    train_by,
)
from kerasmem.graph.clone import clone, same_draws
from kerasmem.graph.layers import check_built, nodes_in_order, own_graph
from kerasmem.memory.compress_activations.plan import Selection, policies
from kerasmem.memory.compress_activations.store import PackedStore
from kerasmem.types import Model, Operation

NAME = "compress_activations"


@dataclass(frozen=True)
class ActivationCompression(Checked):
    """Arguments of `compress_activations`."""

    include: Annotated[Any, PATTERNS] | None
    exclude: Annotated[Any, PATTERNS]
    seed: Annotated[int, Whole(0)]

    def chosen(self, operation: Operation) -> bool:
        """Return whether the layer or operation is compressed."""
        name = operation.name
        is_included = self.include is None or _matches(name, self.include)
        return is_included and not _matches(name, self.exclude)

    def check(self, model: Model) -> None:
        """Raise `ConfigError` if a name or pattern matches no layer of `model`."""
        names = _names(model)
        for pattern in (*(self.include or ()), *self.exclude):
            if not any(_matches(name, (pattern,)) for name in names):
                raise ConfigError(
                    "Expected layer names in `include` and `exclude`. Received: "
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
    """Return a copy of `model` that stores activations for the backward pass in 8 bits.

    Saved activations are 8-bit codes with up to 256 values per scale. Stochastic
    rounding keeps them unbiased. Cheap operations, such as batch normalization or ReLU,
    are recomputed instead. Inference and saved files do not change.
    `kerasmem.memory.activation_report` reports the bytes and the change of the
    gradient.

    Returns:
        The copy, with the weights and settings of `model` and a new optimizer state.

    Sources: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit
    Activation Compressed Training", 2021; Liu et al., "GACT: Activation Compressed
    Training for Generic Network Architectures", 2022.

    Args:
        model: Built Sequential or Functional model, possibly with nested models. Not
            modified.
        include: String or list of strings. Names, or regular expressions for full
            names, of layers to compress. Defaults to None, which selects all layers.
        exclude: String or list of strings. Names, or regular expressions for full
            names, of layers to leave unchanged. Defaults to none.
        bits: Int. Bits per code. Only 8 is supported. Defaults to 8.
        seed: Int >= 0. Seed of the stochastic rounding. Defaults to 0.

    Raises:
        ConfigError: If an argument is invalid or a name matches no layer.
        ModelError: If the model has no graph, has no activation that compression makes
            smaller, or is already rematerialized.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(64, activation="relu") for _ in range(3)]
        >>> model = keras.Sequential([keras.Input((64,)), *layers])
        >>> compressed = compress_activations(model)
        >>> compressed.count_params() == model.count_params()
        True
    """
    if bits != 8:
        raise invalid(NAME, "bits", bits, "8, the only supported number of bits")
    check_built(model)
    if own_graph(model) is None:
        raise ModelError(
            "Compressing activations needs the graph of the model. "
            "Expected: a Sequential or Functional model. Received: "
            f"{type(model).__name__} {model.name!r}, a subclassed model. Next: define "
            "it with keras.Input and keras.Model, or compress one of its inner models."
        )
    settings = ActivationCompression(include, exclude, seed)
    settings.check(model)
    check_one_policy(model, NAME)
    copy = same_draws(clone(model), model)
    compress_in_place(copy, settings)
    return copy


def compress_in_place(
    model: Model, settings: ActivationCompression
) -> Callable[[], None]:
    """Modify `model` to train with compressed activations. Returns the undo.

    Raises:
        ModelError: If no activation becomes smaller.
    """
    graphs = policies(model, Selection(settings.chosen), settings.seed)
    policy = ActivationPolicy(NAME, apply_again, asdict(settings), graphs)
    if not packs_any(policy):
        raise ModelError(
            f"No activation of the model {model.name!r} can be stored in fewer bytes. "
            "Expected: outputs of layers with 32 or more floats of at most 32 bits per "
            "sample. Next: check `include` and `exclude`, or train the original model."
        )
    return train_by(model, policy)


def packs_any(policy: ActivationPolicy) -> bool:
    """Return whether a policy stores an activation in 8 bits."""
    stores = (segment.store for segment in policy.segments)
    return any(isinstance(store, PackedStore) and store.packed for store in stores)


def apply_again(model: Model, settings: Mapping[str, Any]) -> None:
    """Apply the settings to a model that was created again."""
    compress_in_place(model, ActivationCompression(**settings))
