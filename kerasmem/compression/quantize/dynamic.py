"""Products of int8 with int8, the inputs rounded anew in every call.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import round_symmetric
from kerasmem.compression.quantize.coding import Coded
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.products import in_blocks, is_convolution, product
from kerasmem.compression.quantize.rows import Rows
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.graph.kernels import einsum_parts


def dynamic_product(layer: Any, inputs: Any, kernel: QuantizedVariable) -> Any:
    """Return the layer's product of rounded inputs and the codes of its kernel.

    What is summed up together shares a scale: in a Dense or EinsumDense each vector
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
    largest = ops.max(ops.abs(exact), axis=summed_axes(layer, exact), keepdims=True)
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
        if layer.data_format == "channels_first":
            own = keras.ops.reshape(own, (1, -1, *[1] * layer.rank))
        return scales * own
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
