"""Where the channels of a layer lie in its kernel, and how to scale what it makes.

A kernel of Keras's own has its channels along the last two axes; the arrays in here say
which channel goes in or comes out at each place of these two. What a
BatchNormalization does in inference is a factor and an offset per channel.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.graph.channels.families.convolution import channel_axis
from kerasmem.graph.channels.families.dense import einsum_letters
from kerasmem.graph.channels.labels import axis_of
from kerasmem.graph.kernels import einsum_parts
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer


def has_channels(layer: Layer) -> bool:
    """Return True for a layer of Keras's own whose kernel makes channels.

    One with LoRA or in Keras's own int8 is none: its kernel is not all of it.
    """
    is_converted = getattr(layer, "quantization_mode", None) or getattr(
        layer, "lora_enabled", False
    )
    return entry_of(layer).kernel not in (None, "embedding") and not is_converted


def is_einsum(layer: Layer) -> bool:
    """Return True for an EinsumDense, whose channels lie where its letters are."""
    return entry_of(layer).kernel == "einsum"


def is_separable(layer: Layer) -> bool:
    """Return True for a layer of `has_channels` with a depthwise kernel before."""
    return entry_of(layer).kernel == "separable"


def output_kernel(layer: Layer) -> Any:
    """Return the variable that makes the output channels of a layer."""
    return layer.pointwise_kernel if is_separable(layer) else layer.kernel


def input_kernel(layer: Layer) -> Any:
    """Return the variable that takes the input channels of a layer."""
    return layer.depthwise_kernel if is_separable(layer) else layer.kernel


def output_axis(layer: Layer, rank: int) -> int:
    """Return the axis of channels of what a layer takes and makes, not of an einsum."""
    return rank - 1 if entry_of(layer).kernel == "dense" else channel_axis(layer, rank)


def output_places(layer: Layer) -> np.ndarray:
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
    if entry_of(layer).kernel == "transposed":
        return np.arange(rows)[:, None]
    if entry_of(layer).kernel == "depthwise":
        return np.arange(rows * columns).reshape(rows, columns)
    return np.arange(columns)[None]


def input_places(layer: Layer) -> np.ndarray:
    """Return which channel goes in at each place of the last two kernel axes.

    Returns:
        An int array that broadcasts against these axes.
    """
    rows, columns = input_kernel(layer).shape[-2:]
    if entry_of(layer).kernel == "transposed":
        return np.arange(columns)[None]
    groups = getattr(layer, "groups", 1) if not is_separable(layer) else 1
    group = np.arange(columns) // (columns // groups)
    places = np.arange(rows)[:, None] + rows * group[None]
    return places if groups > 1 else places[:, :1]


def per_output(layer: Layer, vector: np.ndarray, axis: int, rank: int) -> Any:
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


@dataclass(frozen=True, eq=False)
class Affine:
    """What a layer multiplies with and adds, as float64.

    Args:
        kernel: of the shape of the layer's kernel.
        bias: a single zero for none.
        bias_axes: the letters of an EinsumDense's bias, None for other layers.
    """

    kernel: np.ndarray
    bias: np.ndarray
    bias_axes: str | None = None


def affine_of(layer: Layer) -> Affine:
    """Return what a layer of `has_channels` multiplies with and adds."""
    kernel = to_numpy(output_kernel(layer)).astype(np.float64)
    bias = np.zeros(1) if layer.bias is None else to_numpy(layer.bias)
    axes = getattr(layer, "bias_axes", None)
    return Affine(kernel, bias.astype(np.float64), axes)


def scaled_and_shifted(
    layer: Layer,
    now: Affine,
    factors: tuple[np.ndarray, np.ndarray],
    place: tuple[int, int],
) -> Affine:
    """Return what makes `scale * y + shift` of the `y` that a layer makes.

    Args:
        layer: one of `has_channels`.
        now: what it multiplies with and adds.
        factors: scale and shift, one number each for every place along an axis.
        place: that axis of the output and its rank; `per_output` knows of it.
    """
    scale, shift = factors
    axis, rank = place
    kernel = now.kernel * per_output(layer, scale, axis, rank)
    if is_einsum(layer):
        return _with_letters(layer, kernel, now, factors, axis)
    return Affine(kernel, now.bias * scale + shift)


def _with_letters(
    layer: Layer,
    kernel: np.ndarray,
    now: Affine,
    factors: tuple[np.ndarray, np.ndarray],
    axis: int,
) -> Affine:
    _, _, output = einsum_parts(layer.equation)
    scale, shift = (axis_of(vector, axis, len(output)) for vector in factors)
    bias = now.bias * scale + shift
    letters = {output[axis], *(now.bias_axes or "")}
    axes = "".join(letter for letter in output if letter in letters)
    return Affine(kernel, bias.reshape(bias.shape[output.index(axes[0]) :]), axes)


def factors(norm: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of a BatchNormalization in inference, as float64."""
    mean, variance, gamma, beta = _statistics(norm)
    scale = gamma / np.sqrt(variance + norm.epsilon)
    return scale, beta - mean * scale


def is_sound(norm: Any) -> bool:
    """Return True if all of its numbers are finite and it divides by positive ones."""
    values = _statistics(norm)
    _, variance, _, _ = values
    finite = all(np.isfinite(value).all() for value in values)
    return finite and bool((variance + norm.epsilon > 0).all())


def _statistics(norm: Any) -> tuple[np.ndarray, ...]:
    count = norm.moving_mean.shape[0]
    variables = (
        (norm.moving_mean, 0.0),
        (norm.moving_variance, 1.0),
        (norm.gamma if norm.scale else None, 1.0),
        (norm.beta if norm.center else None, 0.0),
    )
    return tuple(
        np.full(count, default) if v is None else to_numpy(v).astype(np.float64)
        for v, default in variables
    )
