"""The mask that a tensor carries from one layer to the next."""

import functools
from typing import Any

import keras

from kerasmem.types import Tensor


class _MaskPort(keras.layers.Layer):
    """Gives its input back; tells its mask, or gives it one.

    Where a tensor carries its mask is private to Keras and differs by backend, but
    every layer is told it.
    """

    def __init__(self) -> None:
        super().__init__(autocast=False, name="mask")
        self.supports_masking = True
        self.seen: list[Any] = []

    def call(self, x: Tensor, mask: Tensor = None) -> Any:
        """Return `x`; note its mask."""
        self.seen[:] = [mask]
        return x


@functools.cache
def _port() -> _MaskPort:
    return _MaskPort()


def mask_of(x: Tensor) -> Any | None:
    """Return the mask of a tensor, None if it has none."""
    port = _port()
    port(x)
    return port.seen.pop()


def with_mask(x: Tensor, mask: Tensor) -> Any:
    """Return `x`, which from now on carries `mask`."""
    y = _port()(x, mask=mask)
    _port().seen.clear()
    return y
