"""Common structures of Keras 2 files, and the assignment of weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.graph.layers import weights
from kerasmem.types import Model, Variable

Config = dict[str, Any]
Named = tuple[str, np.ndarray]

_WRAPPERS = {
    "PruneLowMagnitude": "prune",
    "ClusterWeights": "cluster",
    "ClusterWeightsRNN": "cluster",
    "ClusterWeightsMHA": "cluster",
    "QuantizeAnnotate": "annotate",
    "QuantizeWrapper": "quantize",
    "QuantizeWrapperV2": "quantize",
}
_ACTIVATIONS = ("QuantizeAwareActivation", "NoOpActivation")


def wrapper_kind(stored: Config) -> str | None:
    """Return the technique of a tfmot wrapper, or None for other layers."""
    return _WRAPPERS.get(_class_name(stored))


def is_quantizer(stored: Config) -> bool:
    """Return whether the layer only rounds its inputs."""
    return _class_name(stored) == "QuantizeLayer"


def is_rounding(stored: Config) -> bool:
    """Return whether the layer belongs to quantization-aware training."""
    return is_quantizer(stored) or wrapper_kind(stored) == "quantize"


def inner_layer(stored: Config) -> Config:
    """Return the layer inside its wrappers, if any."""
    while wrapper_kind(stored) is not None:
        stored = stored["config"]["layer"]
    return stored


def inner_activation(activation: Any) -> Any:
    """Return the activation inside tfmot's rounding activations."""
    while isinstance(activation, dict) and _class_name(activation) in _ACTIVATIONS:
        activation = activation["config"].get("activation")
    return activation


def _class_name(stored: Config) -> str:
    return str(stored.get("class_name")).rpartition(">")[2]


def clustered(
    weight: np.ndarray, centroids: np.ndarray, indices: np.ndarray
) -> np.ndarray:
    """Return a weight whose entries are replaced by the nearest centroid.

    If tfmot preserves zeros, one centroid is zero. Its entries stay zero, even if
    training moved the weight.

    The shapes are `(..., channels)` for `weight` and `indices` (last centroid of each
    entry), and `(n,)` or `(channels, n)` for `centroids`.

    Example:
        >>> clustered(np.array([0.9, 2.2]), np.array([1.0, 2.0]), np.array([0, 0]))
        array([1., 2.])
    """
    if centroids.ndim > 1:
        channels = [
            clustered(weight[..., i], centroids[i], indices[..., i])
            for i in range(len(centroids))
        ]
        return np.stack(channels, axis=-1)
    nearest = np.abs(weight[..., None] - centroids).argmin(-1)
    zero = np.abs(centroids).argmin()
    if centroids[zero] == 0:
        nearest = np.where(indices == zero, zero, nearest)
    return centroids[nearest]


def masked(
    weights: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Multiply the weights by their masks, if any.

    Masks are in the order of the weights and matched by shape.
    """
    waiting = list(masks)
    new_weights = []
    for weight in weights:
        if waiting and waiting[0].shape == weight.shape:
            weight = weight * waiting.pop(0)  # noqa: PLW2901
        new_weights.append(weight)
    return new_weights


_CENTROIDS, _INDICES = "cluster_centroids_", "pulling_indices_"
_PRUNED = "prune_low_magnitude_"
_OF_PRUNING = ("mask", "threshold", "pruning_step")
_OF_QUANTIZING = ("optimizer_step",)
_RANGES = ("_min", "_max")


def without_wrappers(entries: Sequence[Named]) -> list[Named]:
    """Return the weights of a layer, with tfmot's own weights applied and removed.

    In tfmot's order, each clustered weight is followed by its centroids, and all
    indices come last.
    """
    entries = _with_masks(_with_centroids(entries))
    return [(name, array) for name, array in entries if not _is_of_tfmot(name)]


def _parts(name: str) -> tuple[str, str]:
    layer, _, rest = name.removesuffix(":0").partition("/")
    return layer, rest


def _is_of_tfmot(name: str) -> bool:
    layer, rest = _parts(name)
    return (
        rest.startswith((_CENTROIDS, _INDICES))
        or (layer.startswith(_PRUNED) and rest in _OF_PRUNING)
        or rest in _OF_QUANTIZING
        or (rest.endswith(_RANGES) and "/" not in rest)
    )


def _with_centroids(entries: Sequence[Named]) -> list[Named]:
    new_entries = list(entries)
    indices = [a for name, a in entries if _parts(name)[1].startswith(_INDICES)]
    for i, (name, centroids) in enumerate(entries):
        if _parts(name)[1].startswith(_CENTROIDS):
            before, weight = entries[i - 1]
            new_entries[i - 1] = (before, clustered(weight, centroids, indices.pop(0)))
    return new_entries


def _with_masks(entries: Sequence[Named]) -> list[Named]:
    new_entries = list(entries)
    for wrapper in dict.fromkeys(_parts(name)[0] for name, _ in entries):
        masks = [a for name, a in entries if _parts(name) == (wrapper, "mask")]
        own = (wrapper, wrapper.removeprefix(_PRUNED))
        places = [
            i
            for i, (name, _) in enumerate(entries)
            if _parts(name)[0] in own and not _is_of_tfmot(name)
        ]
        weights = masked([entries[i][1] for i in places], masks)
        for i, weight in zip(places, weights, strict=True):
            new_entries[i] = (entries[i][0], weight)
    return new_entries


@dataclass
class ConvertedLayer:
    """A layer in the file and the layer converted from it.

    Args:
        stored: `class_name` and `config` in the file.
        layer: Keras 3 layer. None for a function or a quantizer without weights.
        layers: Layers of a model in the order of the file.
    """

    stored: Config
    layer: Any
    layers: list["ConvertedLayer"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name in the file, of the outermost tfmot wrapper if any."""
        return self.stored["config"]["name"]

    @property
    def inner(self) -> Config:
        """Stored layer without wrappers."""
        return inner_layer(self.stored)

    @property
    def is_wrapped(self) -> bool:
        """Whether tfmot wraps the layer or a nested layer."""
        if wrapper_kind(self.stored) is not None:
            return True
        return any(layer.is_wrapped for layer in self.layers)

    @property
    def is_rounded(self) -> bool:
        """Whether quantization-aware training rounds the layer or a nested layer."""
        return is_rounding(self.stored) or any(
            layer.is_rounded for layer in self.layers
        )


class Assignment:
    """Assigns the variables of a model and records them, to detect missing weights."""

    def __init__(self) -> None:
        self._done: set[int] = set()

    def put(self, variable: Variable, array: np.ndarray, layer: str) -> None:
        """Assign an array of the same shape to a variable."""
        shape = tuple(variable.shape)
        if array.shape != shape:
            raise ModelFileError(
                f"Invalid weight {variable.name!r} of the layer {layer!r} in the file. "
                f"Expected: shape {shape}. Received: shape {array.shape}."
            )
        if math.prod(shape):
            variable.assign(array)
        self._done.add(id(variable))

    def check_complete(self, model: Model) -> None:
        """Raise `ModelFileError` if a weight of the model was not assigned."""
        for weight in weights(model):
            if id(weight.variable) not in self._done:
                raise ModelFileError(
                    f"The weight {weight.path!r} is missing in the file. Expected: "
                    f"shape {tuple(weight.variable.shape)}."
                )
            if isinstance(weight.owner, keras.layers.Normalization):
                weight.owner.finalize_state()


Fill = Callable[[ConvertedLayer, Assignment], None]
"""Function that assigns the weights of a file to the layers of a model.

Raises `ModelFileError` for an unexpected weight or shape.
"""


@dataclass(frozen=True)
class LegacyFile:
    """Keras 2 model as stored in its file."""

    config: dict[str, Any]
    training: dict[str, Any] | None
    fill: Fill
