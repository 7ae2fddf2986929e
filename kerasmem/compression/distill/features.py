"""Features: outputs of inner layers of a model."""

import contextlib
import difflib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from kerasmem import backends
from kerasmem.backends.patching import LayerCall, observing
from kerasmem.errors import ModelError
from kerasmem.types import Layer, Model, Tensor, Tensors

_REPEATING = (keras.layers.RNN, keras.layers.Wrapper)
"""Layers that run a layer in a loop, whose tensors do not exist outside of the loop."""


def inner_layers(model: Model) -> dict[str, Any]:
    """Returns every readable inner layer by path, such as `"encoder/block_1/dense"`."""
    layers: dict[str, Any] = {}
    _collect(model, "", layers, set())
    return layers


def _collect(layer: Layer, prefix: str, layers: dict[str, Any], seen: set[int]) -> None:
    if isinstance(layer, _REPEATING):
        return
    # Keras has no public list of the sublayers of a plain layer.
    for inner in getattr(layer, "_layers", ()):
        if id(inner) not in seen and isinstance(inner, keras.layers.Layer):
            seen.add(id(inner))
            # The internal Functional model of a Sequential is not part of the path.
            if isinstance(layer, keras.Sequential) and inner is layer._functional:
                _collect(inner, prefix, layers, seen)
                continue
            path = f"{prefix}{inner.name}"
            layers.setdefault(path, inner)
            _collect(inner, f"{path}/", layers, seen)


def find_layers(model: Model, name: str, role: str) -> list[tuple[str, int]]:
    """Returns the paths of matching layers and the index of the output tensor.

    `name` is a path, layer name or regular expression. An ending such as `":1"` selects
    the second output tensor.

    Raises:
        ModelError: If no layer matches, or a layer name is ambiguous.
    """
    layer_name, _, index = name.rpartition(":")
    layer_name, index = (
        (layer_name, int(index)) if layer_name and index.isdigit() else (name, 0)
    )
    layers = inner_layers(model)
    if layer_name in layers:
        return [(layer_name, index)]
    paths = [path for path, layer in layers.items() if layer.name == layer_name]
    if len(paths) > 1:
        raise ModelError(
            f"The {role} {model.name!r} has {len(paths)} layers named "
            f"{layer_name!r}. Next: use one of their paths: {', '.join(paths)}."
        )
    try:
        paths = paths or [path for path in layers if re.fullmatch(layer_name, path)]
    except re.error:
        paths = []
    if not paths:
        names = {*layers, *(layer.name for layer in layers.values())}
        near = difflib.get_close_matches(layer_name, sorted(names), n=3, cutoff=0.3)
        raise ModelError(
            f"The {role} {model.name!r} has no layer {layer_name!r}. The nearest "
            f"names: {', '.join(near or list(layers)[:3]) or 'it has no layers'}."
        )
    return [(path, index) for path in paths]


@contextlib.contextmanager
def layer_outputs(layers: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
    """Yields a dict that records layer outputs by name within the scope.

    Entries are in call order. For a layer with several calls, the last call counts.
    """
    outputs: dict[str, list[Any]] = {}

    def note(call: LayerCall) -> None:
        for name in [name for name, layer in layers.items() if layer is call.layer]:
            outputs.pop(name, None)
            tensors = keras.tree.flatten(call.outputs)
            outputs[name] = [x for x in tensors if hasattr(x, "shape")]

    with observing(layers.values(), outputs=note):
        yield outputs


@dataclass(frozen=True)
class FeatureRef:
    """Reference to one output tensor of a layer, by layer path and index."""

    path: str
    index: int = 0


class FeatureReader:
    """Runs a model and returns its outputs and the referenced features."""

    def __init__(self, model: Model, refs: list[FeatureRef]) -> None:
        every = inner_layers(model) if refs else {}
        self._model = model
        self.refs = refs
        self._layers = {ref.path: every[ref.path] for ref in refs}

    def __call__(self, x: Tensor, **options: Any) -> tuple[Any, dict[FeatureRef, Any]]:
        """Returns the outputs of the model and the features, channels last."""
        with layer_outputs(self._layers) as tensors:
            outputs = self._model(x, **options)
        return outputs, {
            ref: channels_last(tensors[ref.path][ref.index], self._layers[ref.path])
            for ref in self.refs
        }


class LastPass(threading.local):
    """Passes features of a forward pass to the loss computation, per thread."""

    def __init__(self) -> None:
        self._last: tuple[Any, dict[FeatureRef, Any]] | None = None

    def keep(self, outputs: Tensors, features: dict[FeatureRef, Any]) -> None:
        """Stores the features with the outputs of the same pass."""
        self._last = (outputs, features) if features else None

    def take(self, outputs: Tensors) -> dict[FeatureRef, Any] | None:
        """Returns and clears the features; `None` if `outputs` differ."""
        last_pass, self._last = self._last, None
        if last_pass is None:
            return None
        pairs = zip(
            keras.tree.flatten(last_pass[0]), keras.tree.flatten(outputs), strict=False
        )
        return last_pass[1] if all(a is b for a, b in pairs) else None


def channels_last(tensor: Tensor, layer: Layer) -> Any:
    """Moves the channels of a layer output to the last axis."""
    default = keras.config.image_data_format()
    form = getattr(layer, "data_format", None) or default
    if form == "channels_first" and len(tensor.shape) >= 4:
        return ops.moveaxis(tensor, 1, -1)
    return tensor


class FrozenTeacher:
    """Hides the teacher from the variable tracking of Keras.

    Its weights stay out of the optimizer, the gradients and saved files, and its
    `trainable` flag does not change.

    Raises:
        ModelError: If the model has no weights yet.
    """

    def __init__(self, model: Model, refs: list[FeatureRef]) -> None:
        if not model.built:
            raise ModelError(
                f"The teacher {model.name!r} has no weights yet. Next: call it on a "
                "batch of data first."
            )
        self.model = model
        self.refs = refs
        self.read = FeatureReader(model, refs)

    def step_state(self) -> list[Any]:
        """Returns variable copies for calling `answer` in a compiled step.

        The list is empty if the backend can read the teacher's variables there.
        """
        return backends.current().copies_for_step(self.model.variables)

    def answer(self, x: Tensor, state: list[Any]) -> tuple[Any, dict[FeatureRef, Any]]:
        """Returns outputs and features of the teacher in inference mode.

        `state` is the result of `step_state`.
        """
        riding = [
            (v, s.value) for v, s in zip(self.model.variables, state, strict=False)
        ]
        scope = keras.StatelessScope(riding) if riding else contextlib.nullcontext()
        with backends.current().inference(), scope:
            outputs, features = self.read(x, training=False)
        outputs = keras.tree.map_structure(ops.stop_gradient, outputs)
        return outputs, {t: ops.stop_gradient(f) for t, f in features.items()}
