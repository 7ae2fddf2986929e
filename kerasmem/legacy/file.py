"""What every file of Keras 2 holds, whichever its format, and where weights go."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.graph.layers import weights
from kerasmem.legacy.made import Made


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


class Weights(Protocol):
    """The weights of a file."""

    def put_into(self, model: Made, assignment: Assignment) -> None:
        """Put them into the layers of a model."""
        ...


@dataclass(frozen=True)
class LegacyFile:
    """A model of Keras 2 as its file has it.

    Args:
        config: `class_name` and `config` of the model.
        training: loss, metrics and optimizer, None for a model that was not compiled.
        weights: to be put into the model that is made of the config.
    """

    config: dict[str, Any]
    training: dict[str, Any] | None
    weights: Weights
