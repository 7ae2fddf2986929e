"""What every file of Keras 2 holds, whichever its format, and where weights go."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.extras.legacy.tfmot import inner_layer, is_rounding, wrapper_kind
from kerasmem.graph.layers import weights

Config = dict[str, Any]


@dataclass
class ConvertedLayer:
    """A layer of the file and the one that was made of it.

    Args:
        stored: what the file says of it: `class_name`, `config`.
        layer: that of Keras 3; None for a function or a quantizer without weights.
        layers: of a model, those that it lists, in the order of the file.
    """

    stored: Config
    layer: Any
    layers: list["ConvertedLayer"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the file calls it, tfmot's wrapper around it included."""
        return self.stored["config"]["name"]

    @property
    def inner(self) -> Config:
        """What the file says of the layer itself, without wrappers."""
        return inner_layer(self.stored)

    @property
    def is_wrapped(self) -> bool:
        """True if tfmot wrapped it, or a layer in it."""
        if wrapper_kind(self.stored) is not None:
            return True
        return any(made.is_wrapped for made in self.layers)

    @property
    def is_rounded(self) -> bool:
        """True if tfmot rounds it, or a layer in it, while it is trained."""
        return is_rounding(self.stored) or any(made.is_rounded for made in self.layers)


class Assignment:
    """What was put into the variables of a model, to say what is still missing."""

    def __init__(self) -> None:
        self._done: set[int] = set()

    def put(self, variable: Any, array: np.ndarray, layer: str) -> None:
        """Assign an array.

        Raises:
            ModelFileError: if it has another number of entries or axes.
        """
        shape = tuple(variable.shape)
        if array.shape != shape:
            raise ModelFileError(
                f"The weight {variable.name!r} of the layer {layer!r} has the shape "
                f"{array.shape} in the file. Expected: {shape}."
            )
        if math.prod(shape):
            variable.assign(array)
        self._done.add(id(variable))

    def check_complete(self, model: Any) -> None:
        """Raise if a weight of the model got no array.

        Raises:
            ModelFileError: it names the first one.
        """
        for weight in weights(model):
            if id(weight.variable) not in self._done:
                raise ModelFileError(
                    f"The weight {weight.path!r} is missing in the file. Expected: one "
                    f"of shape {tuple(weight.variable.shape)}."
                )
            if isinstance(weight.owner, keras.layers.Normalization):
                weight.owner.finalize_state()


Fill = Callable[[ConvertedLayer, Assignment], None]
"""Puts the weights of a file into the layers of a model.

Raises a `ModelFileError` if one is superfluous or of another shape."""


@dataclass(frozen=True)
class LegacyFile:
    """A model of Keras 2 as its file has it.

    Args:
        config: `class_name` and `config` of the model.
        training: loss, metrics and optimizer, None for a model that was not compiled.
        fill: puts its weights into the model that is made of the config.
    """

    config: dict[str, Any]
    training: dict[str, Any] | None
    fill: Fill
