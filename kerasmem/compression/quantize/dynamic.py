"""Products of int8 with int8, the inputs rounded anew in every call.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

from typing import Any

import keras

from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.products import is_convolution, product
from kerasmem.compression.quantize.variable import QuantizedVariable


def dynamic_product(layer: Any, inputs: Any, kernel: QuantizedVariable) -> Any:
    """Return the layer's product of rounded inputs and the codes of its kernel.

    What is summed up together shares a scale: in a Dense or EinsumDense each vector
    that the kernel multiplies has its own, in a convolution each sample. The products
    of a Dense or EinsumDense are summed as int32, exactly. No backend convolves int8
    on every device: there the integers are summed as float32, exactly too where a
    channel sums over at most 1,040 products, beyond to the rounding of float32.

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
    weight_codes, weight_scales = kernel.codes.value, kernel.scales.value
    if is_convolution(layer):
        total = product(layer, codes, ops.cast(weight_codes, "float32"))
        if layer.data_format == "channels_first":
            weight_scales = ops.reshape(weight_scales, (1, -1, *[1] * layer.rank))
        both = scales * weight_scales
    else:
        total = product(layer, ops.cast(codes, "int8"), weight_codes)
        # Scales have length 1 along what is summed over: a sum of one product.
        axes = kernel.coding.axes
        shape = [1 if axis in axes else n for axis, n in enumerate(kernel.shape)]
        both = product(layer, scales, ops.broadcast_to(weight_scales, shape))
    return ops.cast(ops.cast(total, "float32") * both, layer.compute_dtype)


def summed_axes(layer: Any, inputs: Any) -> tuple[int, ...]:
    """Return the axes of a layer's inputs that share a scale."""
    if is_convolution(layer):
        return tuple(range(1, len(inputs.shape)))
    if not isinstance(layer, keras.layers.EinsumDense):
        return (-1,)
    equation, output = layer.equation.replace(" ", "").split("->")
    # From the end: where there are dots, the number of axes before is open.
    given = equation.split(",")[0].replace("...", ".")[::-1]
    return tuple(
        -1 - place
        for place, letter in enumerate(given)
        if letter != "." and letter not in output
    )
