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
