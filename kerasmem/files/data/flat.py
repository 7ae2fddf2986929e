"""Samples as a list: an array for each input of a model."""

from typing import Any

import keras
import numpy as np

from kerasmem.errors import ConfigError
from kerasmem.files.data.check import check_data, input_names
from kerasmem.files.data.forms import named_leaves, sample_inputs


def flat_samples(model: Any, data: Any, count: int) -> list[np.ndarray]:
    """Return an array per input of `model`, in its order, of the first samples.

    Args:
        model: a `keras.Model`.
        data: samples in any of the forms that `kerasmem.files.data` lists.
        count: most samples to take.

    Raises:
        ConfigError: if the model takes its inputs by names that it does not tell, or
            takes strings.
        DataError: if the data does not fit the model.
    """
    check_data(model, data)
    x = sample_inputs(data, count)
    tensors = getattr(model, "inputs", None)
    if not tensors:
        _check_unnamed(model, x)
        return [np.asarray(array) for array in keras.tree.flatten(x)]
    if isinstance(x, dict):
        given = named_leaves(x)
        arrays = [given[name] for name in input_names(model)]
    else:
        arrays = keras.tree.flatten(x)
    for tensor in tensors:
        check_numbers(tensor)
    return [_fitted(a, t) for a, t in zip(arrays, tensors, strict=True)]


def check_numbers(tensor: Any) -> None:
    """Raise unless an input takes numbers.

    Args:
        tensor: has the name and the dtype of the input.

    Raises:
        ConfigError: if it takes strings.
    """
    if tensor.dtype == "string":
        raise ConfigError(
            "A file is run back on numbers. Received: input "
            f"{tensor.name!r} of dtype string."
        )


def _check_unnamed(model: Any, x: Any) -> None:
    if isinstance(x, dict):
        raise ConfigError(
            f"The model {model.name!r} does not name its inputs. Received: a dict of "
            f"{', '.join(map(str, x))}. Next: put it into a keras.Model with named "
            "Inputs."
        )


def _fitted(array: Any, tensor: Any) -> np.ndarray:
    """Return the array in the dtype of an input, with the last axis of 1 Keras adds."""
    array = np.asarray(array, dtype=tensor.dtype)
    if array.ndim == len(tensor.shape) - 1:
        return array[..., None]
    return array[..., 0] if array.ndim == len(tensor.shape) + 1 else array
