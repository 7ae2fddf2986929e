"""Channel layout of kernels, and affine transforms of the outputs of a layer.

Channels lie along the last two axes of a Keras kernel. Arrays over these two axes
contain the channel index of each entry. In inference, a BatchNormalization is a scale
and a shift per channel.
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
    """Return whether a layer is a Keras layer whose kernel has output channels.

    Layers with LoRA or in Keras's int8 mode have more than a float kernel and do not
    count.
    """
    is_converted = getattr(layer, "quantization_mode", None) or getattr(
        layer, "lora_enabled", False
    )
    return entry_of(layer).kernel not in (None, "embedding") and not is_converted


def is_einsum(layer: Layer) -> bool:
    """Return whether a layer is an EinsumDense, whose equation locates its channels."""
    return entry_of(layer).kernel == "einsum"


def is_separable(layer: Layer) -> bool:
    """Return whether a layer of `has_channels` also has a depthwise kernel."""
    return entry_of(layer).kernel == "separable"


def output_kernel(layer: Layer) -> Any:
    """Return the variable with the output channels of a layer."""
    return layer.pointwise_kernel if is_separable(layer) else layer.kernel


def input_kernel(layer: Layer) -> Any:
    """Return the variable with the input channels of a layer."""
    return layer.depthwise_kernel if is_separable(layer) else layer.kernel


def output_axis(layer: Layer, rank: int) -> int:
    """Return the channel axis of inputs and outputs. Not for EinsumDense."""
    return rank - 1 if entry_of(layer).kernel == "dense" else channel_axis(layer, rank)


def output_places(layer: Layer) -> np.ndarray:
    """Return the output channel of each entry of the last two kernel axes.

    The int array broadcasts against these axes.

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
    """Return the input channel of each entry of the last two kernel axes."""
    rows, columns = input_kernel(layer).shape[-2:]
    if entry_of(layer).kernel == "transposed":
        return np.arange(columns)[None]
    groups = getattr(layer, "groups", 1) if not is_separable(layer) else 1
    group = np.arange(columns) // (columns // groups)
    places = np.arange(rows)[:, None] + rows * group[None]
    return places if groups > 1 else places[:, :1]


def per_output(layer: Layer, vector: np.ndarray, axis: int, rank: int) -> Any:
    """Return one number per channel, broadcastable to the kernel.

    `vector` has an entry for each position along `axis` of an output with `rank` axes.
    Returns None if the kernel does not have that axis.
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
    """Kernel and bias of a layer, float64.

    `bias` is a single zero for a layer without one. `bias_axes` are those of an
    EinsumDense.
    """

    kernel: np.ndarray
    bias: np.ndarray
    bias_axes: str | None = None


def affine_of(layer: Layer) -> Affine:
    """Return kernel and bias of a layer of `has_channels`."""
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
    """Return kernel and bias that compute `scale * y + shift` from the layer's output.

    `factors` are scale and shift along an axis. `place` is the axis and the output's
    rank.
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
    """Return scale and shift of a BatchNormalization in inference, float64."""
    mean, variance, gamma, beta = _statistics(norm)
    scale = gamma / np.sqrt(variance + norm.epsilon)
    return scale, beta - mean * scale


def is_sound(norm: Any) -> bool:
    """Return whether statistics are finite and variances positive."""
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
