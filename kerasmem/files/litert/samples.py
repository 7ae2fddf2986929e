"""The inputs that a file and its model are compared on."""

from typing import Any

import keras
import numpy as np

from kerasmem.backends.litert import Argument
from kerasmem.errors import ConfigError
from kerasmem.files.data import check_data, input_names, named_leaves, sample_inputs

_OPEN_LENGTH = 32


def random_samples(arguments: list[Argument], count: int) -> list[np.ndarray]:
    """Return `count` random samples per input: normal floats, integers of 0 and 1.

    Integers are most often indices, and these two any table has.
    """
    random = np.random.default_rng(0)
    samples = []
    for argument in arguments:
        _check_numbers(argument)
        shape = [_OPEN_LENGTH if n is None else n for n in argument.shape[1:]]
        if "float" in argument.dtype:
            values = random.normal(size=(count, *shape))
        else:
            values = random.integers(0, 2, (count, *shape))
        samples.append(values.astype(argument.dtype))
    return samples


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
        _check_numbers(tensor)
    return [_fitted(a, t) for a, t in zip(arrays, tensors, strict=True)]


def _check_numbers(tensor: Any) -> None:
    if tensor.dtype == "string":
        raise ConfigError(
            "A file is run back on numbers. Received: input "
            f"{tensor.name!r} of dtype string."
        )


def _check_unnamed(model: Any, x: Any) -> None:
    if isinstance(x, dict):
        raise ConfigError(
            f"The model {model.name!r} does not say what it takes, so its inputs come "
            f"as a list of arrays. Received: a dict of {', '.join(map(str, x))}. Next: "
            "put it into a keras.Model with named Inputs."
        )


def _fitted(array: Any, tensor: Any) -> np.ndarray:
    """Return the array in the dtype of an input, with the last axis of 1 Keras adds."""
    array = np.asarray(array, dtype=tensor.dtype)
    if array.ndim == len(tensor.shape) - 1:
        return array[..., None]
    return array[..., 0] if array.ndim == len(tensor.shape) + 1 else array
