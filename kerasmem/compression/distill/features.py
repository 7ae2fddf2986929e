"""Features that are read of a model in every pass that it makes."""

import threading
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.tapping import inner_layers, tapped


@dataclass(frozen=True)
class Tap:
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
        taps: what to read; their layers run whenever the model does.
    """

    def __init__(self, model: Any, taps: list[Tap]) -> None:
        every = inner_layers(model) if taps else {}
        self._model = model
        self.taps = taps
        self._layers = {tap.path: every[tap.path] for tap in taps}

    def __call__(self, x: Any, **options: Any) -> tuple[Any, dict[Tap, Any]]:
        """Return the outputs of the model and the features, channels last."""
        with tapped(self._layers) as given:
            outputs = self._model(x, **options)
        return outputs, {
            tap: channels_last(given[tap.path][tap.index], self._layers[tap.path])
            for tap in self.taps
        }


class LastPass(threading.local):
    """Keeps the features of a pass for whoever gets its outputs next, per thread."""

    def __init__(self) -> None:
        self._kept: tuple[Any, dict[Tap, Any]] | None = None

    def keep(self, outputs: Any, features: dict[Tap, Any]) -> None:
        """Note what the pass that made these outputs gave besides."""
        self._kept = (outputs, features) if features else None

    def take(self, outputs: Any) -> dict[Tap, Any] | None:
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
