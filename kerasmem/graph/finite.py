"""Whether the weights and activations of a model are numbers."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from kerasmem.errors import DataError, ModelError
from kerasmem.graph.values import to_numpy


def check_finite(model: Any, before: Any) -> None:
    """Raise if training left NaN or infinity in a model that had none.

    Args:
        model: the one that was trained.
        before: the one that it was made of.

    Raises:
        ModelError: if so; it names the first such weight.
    """
    for variable in _floats(model.weights):
        values = to_numpy(variable)
        wrong = values.size - np.count_nonzero(np.isfinite(values))
        if wrong and all(
            np.isfinite(to_numpy(weight)).all() for weight in _floats(before.weights)
        ):
            raise ModelError(
                f"Training left NaN or infinity in the model {model.name!r}, in "
                f"{wrong} of {values.size} entries of {variable.path!r}. Next: look "
                "for them in the samples and labels first, then at the learning rate."
            )


def not_finite(layer: Any) -> DataError:
    """Return the error of a layer that makes something which is not finite."""
    return DataError(
        f"The layer {layer.name!r} makes NaN or infinity of the samples. Next: look at "
        "the data first, then at the weights of that layer."
    )


def _floats(variables: Iterable[Any]) -> Iterable[Any]:
    return (v for v in variables if keras.backend.is_float_dtype(v.dtype))
