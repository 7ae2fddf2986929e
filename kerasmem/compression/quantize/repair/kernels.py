"""Where the channels of a layer lie in its kernel.

A kernel of Keras's own has its channels along the last two axes; the arrays in here say
which channel goes in or comes out at each place of these two.
"""

from typing import Any

import numpy as np

from kerasmem.graph.channels.arrays import axis_of
from kerasmem.graph.channels.families.convolution import channel_axis
from kerasmem.graph.channels.families.dense import einsum_letters
from kerasmem.graph.channels.kind import kind

_DEPTHWISE = ("layers.DepthwiseConv1D", "layers.DepthwiseConv2D")
_SEPARABLE = ("layers.SeparableConv1D", "layers.SeparableConv2D")
_TRANSPOSED = tuple(f"layers.Conv{n}DTranspose" for n in (1, 2, 3))
_EINSUM = "layers.EinsumDense"
_KINDS = (
    *("layers.Dense", _EINSUM),
    *(f"layers.Conv{n}D" for n in (1, 2, 3)),
    *(*_DEPTHWISE, *_SEPARABLE, *_TRANSPOSED),
)


def has_channels(layer: Any) -> bool:
    """Return True for a layer of Keras's own whose kernel makes channels.

    One with LoRA or in Keras's own int8 is none: its kernel is not all of it.
    """
    changed = getattr(layer, "quantization_mode", None) or getattr(
        layer, "lora_enabled", False
    )
    return kind(layer) in _KINDS and not changed


def is_einsum(layer: Any) -> bool:
    """Return True for an EinsumDense, whose channels lie where its letters are."""
    return kind(layer) == _EINSUM


def is_separable(layer: Any) -> bool:
    """Return True for a layer of `has_channels` with a depthwise kernel before."""
    return kind(layer) in _SEPARABLE


def output_kernel(layer: Any) -> Any:
    """Return the variable that makes the output channels of a layer."""
    return layer.pointwise_kernel if is_separable(layer) else layer.kernel


def input_kernel(layer: Any) -> Any:
    """Return the variable that takes the input channels of a layer."""
    return layer.depthwise_kernel if is_separable(layer) else layer.kernel


def output_axis(layer: Any, rank: int) -> int:
    """Return the axis of channels of what a layer takes and makes, not of an einsum."""
    return rank - 1 if kind(layer) == "layers.Dense" else channel_axis(layer, rank)


def output_places(layer: Any) -> np.ndarray:
    """Return which channel comes out at each place of the last two kernel axes.

    Returns:
        An int array that broadcasts against these axes.

    Example:
        >>> import keras
        >>> layer = keras.layers.DepthwiseConv1D(3, depth_multiplier=2)
        >>> layer.build((None, 9, 2))
        >>> output_places(layer).tolist()
        [[0, 1], [2, 3]]
    """
    rows, columns = output_kernel(layer).shape[-2:]
    if kind(layer) in _TRANSPOSED:
        return np.arange(rows)[:, None]
    if kind(layer) in _DEPTHWISE:
        return np.arange(rows * columns).reshape(rows, columns)
    return np.arange(columns)[None]


def input_places(layer: Any) -> np.ndarray:
    """Return which channel goes in at each place of the last two kernel axes.

    Returns:
        An int array that broadcasts against these axes.
    """
    rows, columns = input_kernel(layer).shape[-2:]
    if kind(layer) in _TRANSPOSED:
        return np.arange(columns)[None]
    groups = getattr(layer, "groups", 1) if not is_separable(layer) else 1
    group = np.arange(columns) // (columns // groups)
    places = np.arange(rows)[:, None] + rows * group[None]
    return places if groups > 1 else places[:, :1]


def per_output(layer: Any, vector: np.ndarray, axis: int, rank: int) -> Any:
    """Return a number per channel in a shape that broadcasts against the kernel.

    Args:
        layer: one of `has_channels`.
        vector: one entry for every place along an axis of the output.
        axis: that axis, from 0.
        rank: of the output.

    Returns:
        An array; None if it is no axis that the kernel makes.
    """
    if not is_einsum(layer):
        return (
            vector[output_places(layer)] if axis == output_axis(layer, rank) else None
        )
    letters = einsum_letters(layer.equation)
    if letters is None or letters[2][axis] not in letters[1]:
        return None
    _, kernel, output = letters
    return axis_of(vector, kernel.index(output[axis]), len(kernel))
