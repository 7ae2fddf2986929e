"""Windows over pictures, at the places where TensorFlow and LiteRT put them."""

from collections.abc import Sequence
from typing import Any

import keras


def padded(
    pictures: Any, size: Sequence[int], strides: Sequence[int], value: float
) -> Any:
    """Return pictures with what `padding="same"` adds to them.

    Args:
        pictures: a tensor, channels last, of known height and width; or sequences, of
            known length.
        size: lengths of the window, what dilation adds included.
        strides: of the window.
        value: what to add.
    """
    pads = [
        same_padding(length, window, stride)
        for length, window, stride in zip(
            pictures.shape[1:-1], size, strides, strict=True
        )
    ]
    if not any(map(sum, pads)):
        return pictures
    return keras.ops.pad(pictures, [(0, 0), *pads, (0, 0)], constant_values=value)


def same_padding(length: int, window: int, stride: int) -> tuple[int, int]:
    """Return what goes before and after an axis for one output per stride.

    Example:
        >>> same_padding(5, 3, 2), same_padding(4, 3, 2), same_padding(4, 2, 2)
        ((1, 1), (0, 1), (0, 0))
    """
    total = max((-(-length // stride) - 1) * stride + window - length, 0)
    return total // 2, total - total // 2
