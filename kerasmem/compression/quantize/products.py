"""Products of a kernel in fewer bits: in blocks, of integers, scaled afterwards.

Dense, EinsumDense and convolutions are taken apart: product, bias, activation.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import round_symmetric
from kerasmem.compression.quantize.coding import Coded, Rows
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.graph.kernels import by_channel, einsum_parts

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


def dynamic_product(layer: Any, inputs: Any, kernel: QuantizedVariable) -> Any:
    """Return the layer's product of rounded inputs and the codes of its kernel.

    Inputs have the scale that a calibration chose for them all. Where there was none,
    what is summed up together shares a scale: in a Dense or EinsumDense each vector
    that the kernel multiplies has its own, in a convolution each sample. The products
    of a Dense or EinsumDense are summed as int32, exactly. In a convolution integers
    are summed as float32, exactly too where a channel sums over at most 1,040 products,
    beyond to the rounding of float32.

    Args:
        layer: one of which `is_product` is true.
        inputs: float inputs of it.
        kernel: its kernel, symmetric int8 per channel or as a whole.
    """
    ops = keras.ops
    exact = ops.cast(inputs, "float32")
    if kernel.activation_scale is not None:
        scales = ops.full(
            _unit(layer, inputs, kernel), kernel.activation_scale, "float32"
        )
        codes = ops.clip(ops.round(exact / kernel.activation_scale), -LIMIT, LIMIT)
    else:
        axes = summed_axes(layer, exact)
        largest = ops.max(ops.abs(exact), axis=axes, keepdims=True)
        scales = ops.where(largest == 0, ops.ones_like(largest), largest / LIMIT)
        codes = ops.round(exact / scales)
    # No backend convolves int8 on every device.
    dtype = "float32" if is_convolution(layer) else "int8"
    codes = ops.cast(codes, dtype)

    def multiply(coded: Coded, _: Rows | None) -> Any:
        return product(layer, codes, ops.cast(coded.codes, dtype))

    total = in_blocks(layer, codes, kernel, multiply)
    both = _product_scales(layer, scales, kernel)
    return ops.cast(ops.cast(total, "float32") * both, layer.compute_dtype)


def is_scaled_after(layer: Any, kernel: QuantizedVariable) -> bool:
    """Return whether what a layer's codes give is scaled, and not the codes.

    That is cheaper where outputs are fewer than weights, as in a Dense. In 16 bits the
    float weight is rounded: what `dequantize` gives has to answer alike.
    """
    coding = kernel.coding
    return (
        not is_convolution(layer)
        and layer.compute_dtype == "float32"
        and coding.bits == 8
        and coding.symmetric
        and coding.granularity != "group"
        and not coding.by_input
        and not kernel.is_hoisted
    )


def scaled_product(layer: Any, inputs: Any, kernel: QuantizedVariable) -> Any:
    """Return the layer's product of its inputs and the codes, each output scaled.

    Args:
        layer: one of which `is_scaled_after` is true.
        inputs: float32 inputs of it.
        kernel: its kernel.
    """
    ops = keras.ops

    def multiply(coded: Coded, _: Rows | None) -> Any:
        return product(layer, inputs, ops.cast(coded.codes, "float32"))

    total = in_blocks(layer, inputs, kernel, multiply)
    ones = ops.ones(_unit(layer, inputs, kernel), "float32")
    return total * _product_scales(layer, ones, kernel)


def _unit(layer: Any, inputs: Any, kernel: QuantizedVariable) -> tuple[int, ...]:
    """Return the least shape of inputs that multiplies the scales of a kernel."""
    rank = len(inputs.shape)
    if not isinstance(layer, keras.layers.EinsumDense):
        return (1,) * rank
    given, own, _ = einsum_parts(layer.equation)
    summed = kernel.coding.axes
    sizes = {own[i]: n for i, n in enumerate(kernel.shape) if i not in summed}
    letters = given.replace("...", "." * (rank - len(given.replace("...", ""))))
    return tuple(sizes.get(letter, 1) for letter in letters)


def rounded_inputs(layer: Any, inputs: Any) -> Any:
    """Return inputs of a product as `dynamic_product` rounds them, with a gradient.

    Args:
        layer: one of which `is_product` is true.
        inputs: float inputs of it.
    """
    axes = tuple(axis % len(inputs.shape) for axis in summed_axes(layer, inputs))
    exact = round_symmetric(keras.ops.cast(inputs, "float32"), axes)
    return keras.ops.cast(exact, inputs.dtype)


def _product_scales(layer: Any, scales: Any, kernel: QuantizedVariable) -> Any:
    """Return what the summed integers are multiplied by."""
    own = kernel.scales.value
    if is_convolution(layer):
        return scales * by_channel(layer, own)
    # Scales have length 1 along what is summed over: a sum of one product.
    axes = kernel.coding.axes
    shape = [1 if axis in axes else n for axis, n in enumerate(kernel.shape)]
    return product(layer, scales, keras.ops.broadcast_to(own, shape))


def summed_axes(layer: Any, inputs: Any) -> tuple[int, ...]:
    """Return the axes of a layer's inputs that share a scale."""
    if is_convolution(layer):
        return tuple(range(1, len(inputs.shape)))
    if not isinstance(layer, keras.layers.EinsumDense):
        return (-1,)
    taken, _, output = einsum_parts(layer.equation)
    # From the end: where there are dots, the number of axes before is open.
    given = taken.replace("...", ".")[::-1]
    return tuple(
        -1 - place
        for place, letter in enumerate(given)
        if letter != "." and letter not in output
    )
