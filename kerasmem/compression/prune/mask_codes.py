"""Masks in few bytes: one bit per entry where a step unpacks them at no cost."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

_BITS = np.array([[1], [2], [4], [8], [16], [32], [64], [128]], "uint8")


def encode(mask: np.ndarray, *, packed: bool) -> np.ndarray:
    """Return a bool mask as it is kept: eight entries in a byte, or as it is.

    The entries of one byte lie an eighth of the array apart: so those of one bit are
    neighbors, and a processor unpacks many at once.

    Example:
        >>> encode(np.array([True, False, True]), packed=True)
        array([5], dtype=uint8)
    """
    if not packed:
        return mask
    flat = np.pad(mask.ravel(), (0, -mask.size % len(_BITS)))
    planes = flat.view("uint8").reshape(len(_BITS), -1)
    code = planes[0].copy()
    # Several times as quick as np.packbits, which takes the planes entry by entry.
    for place, plane in enumerate(planes[1:], start=1):
        code |= plane << place
    return code


def decode(code: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the mask of `shape` that `encode` made `code` of."""
    if code.dtype == bool:
        return code
    flat = (code & _BITS).ravel() != 0
    return flat[: math.prod(shape)].reshape(shape)


def decode_in_step(code: Any, shape: Sequence[int]) -> Any:
    """Return the mask that a state holds as a bool tensor."""
    code = ops.convert_to_tensor(code)
    if keras.backend.standardize_dtype(code.dtype) == "bool":
        return code
    bits = ops.convert_to_tensor(_BITS)
    flat = ops.reshape(ops.not_equal(ops.bitwise_and(code, bits), 0), (-1,))
    size = math.prod(shape)
    return ops.reshape(flat if size % len(_BITS) == 0 else flat[:size], tuple(shape))
