"""The layers that multiply by one kernel, taken apart: product, bias, activation."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from kerasmem.compression.quantize.coding import Coded
from kerasmem.compression.quantize.rows import Rows
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.graph.kernels import einsum_parts

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
_CALLS = (
    keras.layers.Dense.call,
    keras.layers.EinsumDense.call,
    *(cls.call for cls in _CONVOLUTIONS),
)


def is_product(layer: Any) -> bool:
    """Return True for Dense, EinsumDense and convolutions that compute as Keras's do.

    Others, such as a subclass with a `call` of its own, cannot be taken apart.
    """
    return type(layer).call in _CALLS


def has_lora(layer: Any) -> bool:
    """Return True for a layer that adds something to its kernel."""
    return getattr(layer, "lora_enabled", False)


def product(layer: Any, inputs: Any, kernel: Any) -> Any:
    """Return what the layer makes of its inputs with `kernel`, without the bias.

    Args:
        layer: one of which `is_product` was true.
        inputs: its inputs.
        kernel: a tensor: its kernel, or some output channels of it.
    """
    if isinstance(layer, _CONVOLUTIONS):
        return _convolved(layer, inputs, kernel)
    if isinstance(layer, keras.layers.EinsumDense):
        return keras.ops.einsum(layer.equation, inputs, kernel)
    return keras.ops.matmul(inputs, kernel)


def _convolved(layer: Any, inputs: Any, kernel: Any) -> Any:
    if layer.padding != "causal":
        return layer.convolution_op(inputs, kernel)
    # As `keras.layers.Conv1D.call` does: the convolution itself knows no such padding.
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


def finished(layer: Any, outputs: Any) -> Any:
    """Return the layer's outputs: bias and activation added to its product."""
    if layer.bias is not None:
        bias = layer.bias
        if is_convolution(layer) and layer.data_format == "channels_first":
            bias = keras.ops.reshape(bias, (1, -1, *[1] * layer.rank))
        outputs = keras.ops.add(outputs, bias)
    return outputs if layer.activation is None else layer.activation(outputs)


def is_convolution(layer: Any) -> bool:
    """Return True for a convolution that is neither depthwise nor transposed."""
    return isinstance(layer, _CONVOLUTIONS)


def block_axes(layer: Any) -> tuple[int, int] | None:
    """Return the axis of the kernel to cut along, and that of the output.

    None where it cannot be cut: the channels of a grouped convolution are not free.
    """
    if isinstance(layer, _CONVOLUTIONS):
        first = layer.data_format == "channels_first"
        return None if layer.groups > 1 else (layer.rank + 1, 1 if first else -1)
    if not isinstance(layer, keras.layers.EinsumDense):
        return 1, -1
    given, kernel, output = einsum_parts(layer.equation)
    axes = [
        # From the end: where there are dots, the number of axes before is open.
        (axis, -1 - output[::-1].index(letter))
        for axis, letter in enumerate(kernel)
        if letter in output and letter not in given
    ]
    return max(axes, key=lambda pair: layer.kernel.shape[pair[0]], default=None)


def in_blocks(
    layer: Any,
    inputs: Any,
    kernel: QuantizedVariable,
    multiply: Callable[[Coded, Rows | None], Any],
) -> Any:
    """Return the layer's product with a kernel, one block of output channels at a time.

    Args:
        layer: one of which `is_product` is true.
        inputs: its inputs; no block is begun before they are there.
        kernel: its kernel.
        multiply: returns the product with some output channels of the kernel, given as
            tensors.
    """
    axes = block_axes(layer)
    if kernel.block_count == 1 or axes is None:
        return multiply(*kernel.tensors(inputs))
    axis, place = axes
    outputs = []
    for start, stop in _cuts(kernel.shape[axis], kernel.block_count):
        before = outputs[-1] if outputs else inputs
        outputs.append(multiply(*kernel.tensors(before, (axis, start, stop))))
    return keras.ops.concatenate(outputs, axis=place)


def _cuts(length: int, count: int) -> Iterator[tuple[int, int]]:
    size = -(-length // count)
    return ((start, min(start + size, length)) for start in range(0, length, size))
