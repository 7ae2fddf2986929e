"""Features that are read of a model in every pass that it makes."""

import contextlib
import threading
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from kerasmem import backends
from kerasmem.compression.distill.tapping import inner_layers, tapped
from kerasmem.errors import ModelError


@dataclass(frozen=True)
class FeatureRef:
    """One tensor that one layer gives.

    Args:
        path: the layer's path in its model.
        index: which of its tensors.
    """

    path: str
    index: int = 0


class Reader:
    """Runs a model and reads features on the way.

    Args:
        model: the model.
        refs: what to read; their layers run whenever the model does.
    """

    def __init__(self, model: Any, refs: list[FeatureRef]) -> None:
        every = inner_layers(model) if refs else {}
        self._model = model
        self.refs = refs
        self._layers = {ref.path: every[ref.path] for ref in refs}

    def __call__(self, x: Any, **options: Any) -> tuple[Any, dict[FeatureRef, Any]]:
        """Return the outputs of the model and the features, channels last."""
        with tapped(self._layers) as given:
            outputs = self._model(x, **options)
        return outputs, {
            ref: channels_last(given[ref.path][ref.index], self._layers[ref.path])
            for ref in self.refs
        }


class LastPass(threading.local):
    """Keeps the features of a pass for whoever gets its outputs next, per thread."""

    def __init__(self) -> None:
        self._kept: tuple[Any, dict[FeatureRef, Any]] | None = None

    def keep(self, outputs: Any, features: dict[FeatureRef, Any]) -> None:
        """Note what the pass that made these outputs gave besides."""
        self._kept = (outputs, features) if features else None

    def take(self, outputs: Any) -> dict[FeatureRef, Any] | None:
        """Return and forget the features; None if other outputs came last."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        pairs = zip(
            keras.tree.flatten(kept[0]), keras.tree.flatten(outputs), strict=False
        )
        return kept[1] if all(a is b for a, b in pairs) else None


def channels_last(tensor: Any, layer: Any) -> Any:
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

    def __init__(self, model: Any, refs: list[FeatureRef]) -> None:
        if not model.built:
            raise ModelError(
                f"The teacher {model.name!r} has no weights yet. Next: call it on a "
                "batch of data first."
            )
        self.model = model
        self.refs = refs
        self.read = Reader(model, refs)

    def step_state(self) -> list[Any]:
        """Return variables for whoever calls `answer` inside a compiled step.

        There are none where a step can read the teacher's own variables.
        """
        return backends.current().copies_for_step(self.model.variables)

    def answer(self, x: Any, state: list[Any]) -> tuple[Any, dict[FeatureRef, Any]]:
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
