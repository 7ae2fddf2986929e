"""Products of integers: inputs rounded to int8 in each call, and codes of a kernel.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

from typing import Any

import keras

from kerasmem.compression.quantize.aware.rounding import round_symmetric
from kerasmem.compression.quantize.coding import Coded, Rows
from kerasmem.compression.quantize.float_products import (
    in_blocks,
    product_scales,
    scales_shape,
)
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.products import is_convolution, summed_axes
from kerasmem.compression.quantize.variable import QuantizedVariable


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
            scales_shape(layer, inputs, kernel), kernel.activation_scale, "float32"
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

    def floats(coded: Coded, _: Rows | None) -> Any:
        return ops.cast(coded.codes, dtype)

    total = in_blocks(layer, codes, kernel, floats)
    both = product_scales(layer, scales, kernel)
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
