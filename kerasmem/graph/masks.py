"""Reads and sets the mask of a tensor."""

import functools
from typing import Any

import keras

from kerasmem.types import Tensor


class _MaskPort(keras.layers.Layer):
    """Reads or sets the mask of its input.

    The location of the mask is private in Keras and depends on the backend.
    """

    def __init__(self) -> None:
        super().__init__(autocast=False, name="mask")
        self.supports_masking = True
        self.seen: list[Any] = []

    def call(self, x: Tensor, mask: Tensor = None) -> Any:
        self.seen[:] = [mask]
        return x


@functools.cache
def _port() -> _MaskPort:
    return _MaskPort()


def mask_of(x: Tensor) -> Any | None:
    """Returns the mask of a tensor, or None."""
    port = _port()
    port(x)
    return port.seen.pop()


def with_mask(x: Tensor, mask: Tensor) -> Any:
    """Sets the mask of `x`. Returns `x`."""
    y = _port()(x, mask=mask)
    _port().seen.clear()
    return y
