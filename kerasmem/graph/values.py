"""The values of variables on the host, and their bytes."""

import math
from typing import Any

import keras
import numpy as np


def to_numpy(variable: Any) -> np.ndarray:
    """Return the value of a `keras.Variable` or tensor as a NumPy array."""
    # By way of a tensor: NumPy 2 deprecates how Keras hands it a variable.
    return keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(variable))


def nbytes(variable: Any) -> int:
    """Return the bytes of a variable in RAM."""
    dtype = np.dtype(keras.backend.standardize_dtype(variable.dtype))
    return math.prod(variable.shape) * dtype.itemsize


def held_bytes(model: Any) -> int:
    """Return the bytes of the variables of a model and of its optimizer, if any."""
    optimizer = model.optimizer if model.compiled else None
    held = [*model.variables, *(optimizer.variables if optimizer else ())]
    return sum(map(nbytes, {id(variable): variable for variable in held}.values()))


def represents(variable: Any, weight: Any | None) -> None:
    """Note that a variable holds a weight in fewer bits, or is a mere scale of one.

    Args:
        variable: holds the codes or the scales.
        weight: what the codes stand for, with a shape and float values; None for scales
            and zero points.
    """
    # Past Keras's own `__setattr__`: TensorFlow would track and save what is set there.
    object.__setattr__(variable, _REPRESENTED, weight)


def is_scale(variable: Any) -> bool:
    """Return True for the scales of quantized weights, ours and Keras's own.

    They take bytes, but are no parameters of the model.
    """
    ours = _represented(variable) is None
    return ours or variable.name.endswith(("kernel_scale", "embeddings_scale"))


def parameters(variable: Any) -> int:
    """Return the number of a model's parameters that a variable holds."""
    if is_scale(variable):
        return 0
    return math.prod(_represented(variable).shape)


def nonzero(variable: Any) -> int:
    """Return how many of the parameters that a variable holds are not zero."""
    if is_scale(variable):
        return 0
    return int(np.count_nonzero(to_numpy(_represented(variable))))


def _represented(variable: Any) -> Any:
    return vars(variable).get(_REPRESENTED, variable)


_REPRESENTED = "_kerasmem_represented"
