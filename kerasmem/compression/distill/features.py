"""Features: what layers inside of a model give in every pass that it makes."""

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
"""What runs a layer in a loop: what that gives is no tensor outside of it."""


def inner_layers(model: Model) -> dict[str, Any]:
    """Return every layer inside of a model whose outputs can be looked at, by its path.

    A path is the names from the outside in, such as `"encoder/block_1/dense"`.
    """
    layers: dict[str, Any] = {}
    _collect(model, "", layers, set())
    return layers


def _collect(layer: Layer, prefix: str, layers: dict[str, Any], seen: set[int]) -> None:
    if isinstance(layer, _REPEATING):
        return
    # Keras has no public list of the layers that a plain layer holds.
    for inner in getattr(layer, "_layers", ()):
        if id(inner) not in seen and isinstance(inner, keras.layers.Layer):
            seen.add(id(inner))
            # The model that a Sequential keeps its own graph in has no name of its own.
            if isinstance(layer, keras.Sequential) and inner is layer._functional:
                _collect(inner, prefix, layers, seen)
                continue
            path = f"{prefix}{inner.name}"
            layers.setdefault(path, inner)
            _collect(inner, f"{path}/", layers, seen)


def find_layers(model: Model, name: str, role: str) -> list[tuple[str, int]]:
    """Return the paths that a name means, and which tensor of the layer's.

    Args:
        model: where to look.
        name: path, layer name or regular expression; with `":1"` at its end for the
            second tensor.
        role: `"teacher"` or `"student"`, for the text of the error.

    Raises:
        ModelError: if it means none, with the nearest names; or two of one name.
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
            f"The {role} {model.name!r} has {len(paths)} layers of the name "
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
    """Give a dict that fills with what layers return while the context lasts.

    The order is that of the calls; of a layer that is called twice the last call
    counts. Afterwards the layers are as before.

    Args:
        layers: by the name under which their tensors are wanted.
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
    """One tensor that one layer gives.

    Args:
        path: the layer's path in its model.
        index: which of its tensors.
    """

    path: str
    index: int = 0


class FeatureReader:
    """Runs a model and reads features on the way.

    Args:
        model: the model.
        refs: what to read; their layers run whenever the model does.
    """

    def __init__(self, model: Model, refs: list[FeatureRef]) -> None:
        every = inner_layers(model) if refs else {}
        self._model = model
        self.refs = refs
        self._layers = {ref.path: every[ref.path] for ref in refs}

    def __call__(self, x: Tensor, **options: Any) -> tuple[Any, dict[FeatureRef, Any]]:
        """Return the outputs of the model and the features, channels last."""
        with layer_outputs(self._layers) as tensors:
            outputs = self._model(x, **options)
        return outputs, {
            ref: channels_last(tensors[ref.path][ref.index], self._layers[ref.path])
            for ref in self.refs
        }


class LastPass(threading.local):
    """Keeps the features of a pass for whoever gets its outputs next, per thread."""

    def __init__(self) -> None:
        self._last: tuple[Any, dict[FeatureRef, Any]] | None = None

    def keep(self, outputs: Tensors, features: dict[FeatureRef, Any]) -> None:
        """Note what the pass that made these outputs gave besides."""
        self._last = (outputs, features) if features else None

    def take(self, outputs: Tensors) -> dict[FeatureRef, Any] | None:
        """Return and forget the features; None if other outputs came last."""
        last_pass, self._last = self._last, None
        if last_pass is None:
            return None
        pairs = zip(
            keras.tree.flatten(last_pass[0]), keras.tree.flatten(outputs), strict=False
        )
        return last_pass[1] if all(a is b for a, b in pairs) else None


def channels_last(tensor: Tensor, layer: Layer) -> Any:
    """Return what a layer gave with its channels in the last axis."""
    default = keras.config.image_data_format()
    form = getattr(layer, "data_format", None) or default
    if form == "channels_first" and len(tensor.shape) >= 4:
        return ops.moveaxis(tensor, 1, -1)
    return tensor


class FrozenTeacher:
    """The teacher behind a wall.

    Keras collects the weights of everything that a model holds; of this it does not,
    so the teacher keeps its `trainable` flag and its weights stay out of every
    optimizer, gradient and file.

    Args:
        model: a built `keras.Model`.
        refs: features to read while it answers.

    Raises:
        ModelError: if the model has no weights yet.
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
        """Return variables for whoever calls `answer` inside a compiled step.

        There are none where a step can read the teacher's own variables.
        """
        return backends.current().copies_for_step(self.model.variables)

    def answer(self, x: Tensor, state: list[Any]) -> tuple[Any, dict[FeatureRef, Any]]:
        """Return the teacher's outputs for a batch and features, in inference mode.

        Args:
            x: inputs as `fit` gives them to a model.
            state: what `step_state` returned.
        """
        riding = [
            (v, s.value) for v, s in zip(self.model.variables, state, strict=False)
        ]
        scope = keras.StatelessScope(riding) if riding else contextlib.nullcontext()
        with backends.current().inference(), scope:
            outputs, features = self.read(x, training=False)
        outputs = keras.tree.map_structure(ops.stop_gradient, outputs)
        return outputs, {t: ops.stop_gradient(f) for t, f in features.items()}
