"""Products of a kernel: which layers compute one, and how to split them into blocks."""

from typing import Any

import keras

from kerasmem.graph.kernels import class_of_call, einsum_parts
from kerasmem.types import Layer, Tensor, Tensors

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_CALLS = (
    keras.layers.Dense.call,
    keras.layers.EinsumDense.call,
    *(cls.call for cls in _CONVOLUTIONS),
)


def is_product(layer: Layer) -> bool:
    """Return whether a layer uses `call` of Keras's Dense, EinsumDense or convolutions.

    A subclass with another `call` cannot be decomposed.
    """
    return type(layer).call in _CALLS


def multiplied_weight(layer: Layer) -> str | None:
    """Return the attribute that contains the weight of a layer's product, or None.

    For a `ReversibleEmbedding`, it is the weight that computes the logits.
    """
    if class_of_call(layer) is keras.layers.ReversibleEmbedding:
        return "_embeddings" if layer.tie_weights else "reverse_embeddings"
    return "_kernel" if is_product(layer) else None


def has_rows_of_outputs(layer: Layer) -> bool:
    """Return whether a layer multiplies with a transposed embedding table."""
    return isinstance(layer, keras.layers.ReversibleEmbedding) and layer.tie_weights


def product(layer: Layer, inputs: Tensors, kernel: Tensor) -> Any:
    """Return the product of inputs and `kernel`, without the bias.

    `kernel` is a tensor with all or some output channels of the weight.
    """
    if isinstance(layer, _CONVOLUTIONS):
        return _convolved(layer, inputs, kernel)
    if isinstance(layer, keras.layers.EinsumDense):
        return keras.ops.einsum(layer.equation, inputs, kernel)
    if has_rows_of_outputs(layer):
        kernel = keras.ops.transpose(kernel)
    return keras.ops.matmul(inputs, kernel)


def _convolved(layer: Layer, inputs: Tensors, kernel: Tensor) -> Any:
    if layer.padding != "causal":
        return layer.convolution_op(inputs, kernel)
    # `keras.ops.conv` does not support causal padding, so pad as Conv1D does.
    widths = [(0, 0)] * 3
    steps = 2 if layer.data_format == "channels_first" else 1
    widths[steps] = (layer.dilation_rate[0] * (layer.kernel_size[0] - 1), 0)
    return keras.ops.conv(
        keras.ops.pad(inputs, widths),
        kernel,
        strides=list(layer.strides),
        padding="valid",
        dilation_rate=layer.dilation_rate,
        data_format=layer.data_format,
    )


def is_convolution(layer: Layer) -> bool:
    """Return whether a layer is a convolution, neither depthwise nor transposed."""
    return isinstance(layer, _CONVOLUTIONS)


def block_axes(layer: Layer) -> tuple[int, int] | None:
    """Return the kernel axis to split into blocks, and the output axis from the end.

    None if there is no such axis. A grouped convolution has none.
    """
    if isinstance(layer, _CONVOLUTIONS):
        first = layer.data_format == "channels_first"
        place = -1 - layer.rank if first else -1
        return None if layer.groups > 1 else (layer.rank + 1, place)
    if has_rows_of_outputs(layer):
        return 0, -1
    if not isinstance(layer, keras.layers.EinsumDense):
        return 1, -1
    input_letters, kernel, output = einsum_parts(layer.equation)
    axes = [
        # Count from the end, because an ellipsis matches any number of axes.
        (axis, -1 - output[::-1].index(letter))
        for axis, letter in enumerate(kernel)
        if letter in output and letter not in input_letters
    ]
    return max(axes, key=lambda pair: layer._kernel.shape[pair[0]], default=None)


def summed_axes(layer: Layer, inputs: Tensors) -> tuple[int, ...]:
    """Return the axes of a layer's inputs that share a scale."""
    if is_convolution(layer):
        return tuple(range(1, len(inputs.shape)))
    if not isinstance(layer, keras.layers.EinsumDense):
        return (-1,)
    input_letters, _, output = einsum_parts(layer.equation)
    # Count from the end, because an ellipsis matches any number of axes.
    from_end = input_letters.replace("...", ".")[::-1]
    return tuple(
        -1 - place
        for place, letter in enumerate(from_end)
        if letter != "." and letter not in output
    )


def row_axes(layer: Layer, rank: int) -> list[tuple[int, int]]:
    """Return pairs of input and output axis for each axis that the kernel lacks."""
    if not isinstance(layer, keras.layers.EinsumDense):
        return [(axis, axis) for axis in range(rank - 1)]
    input_letters, kernel, output = einsum_parts(layer.equation)
    dots = "0123456789"[: rank - len(input_letters.replace("...", ""))]
    input_letters, output = (
        input_letters.replace("...", dots),
        output.replace("...", dots),
    )
    return [
        (axis, output.index(letter))
        for axis, letter in enumerate(input_letters)
        if letter not in kernel
    ]
