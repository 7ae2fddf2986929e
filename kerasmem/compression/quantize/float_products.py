"""Products of inputs and a kernel that codes stand for: in blocks, scaled afterwards.

Where a gradient follows, the floats of the codes are made again for it, so that a step
keeps the codes alone.

Source: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023.
"""

from collections.abc import Callable
from typing import Any

import keras

from kerasmem import backends
from kerasmem.compression.quantize.coding import Coded, Rows
from kerasmem.compression.quantize.products import (
    block_axes,
    is_convolution,
    product,
)
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.graph.kernels import by_channel, einsum_parts


def float_product(
    layer: Any, inputs: Any, kernel: QuantizedVariable, *, again: bool = False
) -> Any:
    """Return the layer's product of its inputs and its kernel, without the bias.

    Args:
        layer: one of which `is_product` was true.
        inputs: float inputs of it.
        kernel: its kernel.
        again: whether what is multiplied with is made a second time for the gradient,
            where the product can be transposed, and not kept.
    """
    coded = kernel.coded.map(lambda part: keras.ops.convert_to_tensor(part.value))
    is_scaled = _is_scaled_after(layer, kernel)
    floats = _codes if is_scaled else kernel.decoded

    def forward(inputs: Any, *parts: Any) -> Any:
        now = coded.with_parts(parts)
        total = in_blocks(layer, inputs, kernel, floats, now)
        if not is_scaled:
            return total
        ones = keras.ops.ones(scales_shape(layer, inputs, kernel), "float32")
        return total * product_scales(layer, ones, kernel, now)

    def transposed(gradient: Any, *parts: Any) -> Any:
        return _transposed_in_blocks(layer, gradient, kernel, coded.with_parts(parts))

    if again and _is_transposable(layer):
        return backends.current().linear(forward, transposed, inputs, coded.parts)
    return forward(inputs, *coded.parts)


def _codes(coded: Coded, _: Rows | None) -> Any:
    return keras.ops.cast(coded.codes, "float32")


def _is_scaled_after(layer: Any, kernel: QuantizedVariable) -> bool:
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


def in_blocks(
    layer: Any,
    inputs: Any,
    kernel: QuantizedVariable,
    floats: Callable[[Coded, Rows | None], Any],
    coded: Coded | None = None,
) -> Any:
    """Return the layer's product with a kernel, one block of output channels at a time.

    Args:
        layer: one of which `is_product` was true.
        inputs: its inputs; no block is begun before they are there.
        kernel: its kernel.
        floats: makes of codes, of all output channels or some, what is multiplied with.
        coded: tensors with the values of the kernel; None for those of now.
    """
    outputs: list[Any] = []
    blocks, place = _blocks(layer, kernel)
    for block in blocks:
        before = outputs[-1] if outputs else inputs
        own = floats(*kernel.tensors(before, block, coded))
        outputs.append(product(layer, inputs, own))
        del own  # before the next block's floats are made
    whole = len(outputs) == 1
    return outputs[0] if whole else keras.ops.concatenate(outputs, axis=place)


def _transposed_in_blocks(
    layer: Any, gradient: Any, kernel: QuantizedVariable, coded: Coded
) -> Any:
    """Return the gradient of a layer's inputs of that of its product."""
    total = None
    blocks, place = _blocks(layer, kernel)
    after = (slice(None),) * (-1 - place)
    for block in blocks:
        cut = ... if block is None else (..., slice(*block[1:]), *after)
        own = kernel.decoded(*kernel.tensors(total, block, coded))
        change = _transposed(layer, gradient[cut], own)
        del own
        total = change if total is None else total + change
    return total


def _blocks(
    layer: Any, kernel: QuantizedVariable
) -> tuple[list[tuple[int, int, int] | None], int]:
    """Return axis, begin and end of each block, and the axis of the output.

    None stands for the whole kernel. The axis of the output is counted from the end.
    """
    axes = block_axes(layer)
    if kernel.block_count == 1 or axes is None:
        return [None], -1
    axis, place = axes
    length = kernel.shape[axis]
    size = -(-length // kernel.block_count)
    starts = range(0, length, size)
    return [(axis, start, min(start + size, length)) for start in starts], place


def _is_transposable(layer: Any) -> bool:
    if not isinstance(layer, keras.layers.EinsumDense):
        return not is_convolution(layer)
    given, kernel, output = einsum_parts(layer.equation)
    return set(given) <= {*kernel, *output}


def _transposed(layer: Any, gradient: Any, kernel: Any) -> Any:
    """Return the gradient of what a Dense or EinsumDense multiplies."""
    if isinstance(layer, keras.layers.EinsumDense):
        given, own, output = einsum_parts(layer.equation)
        return keras.ops.einsum(f"{output},{own}->{given}", gradient, kernel)
    return keras.ops.matmul(gradient, keras.ops.transpose(kernel))


def scales_shape(layer: Any, inputs: Any, kernel: QuantizedVariable) -> tuple[int, ...]:
    """Return the least shape of inputs that multiplies the scales of a kernel."""
    rank = len(inputs.shape)
    if not isinstance(layer, keras.layers.EinsumDense):
        return (1,) * rank
    given, own, _ = einsum_parts(layer.equation)
    summed = kernel.coding.axes
    sizes = {own[i]: n for i, n in enumerate(kernel.shape) if i not in summed}
    letters = given.replace("...", "." * (rank - len(given.replace("...", ""))))
    return tuple(sizes.get(letter, 1) for letter in letters)


def product_scales(
    layer: Any, scales: Any, kernel: QuantizedVariable, coded: Coded | None = None
) -> Any:
    """Return what the summed integers are multiplied by.

    Args:
        layer: one of which `is_product` was true.
        scales: of what is multiplied.
        kernel: its kernel.
        coded: tensors with the values of the kernel; None for those of now.
    """
    own = kernel.scales.value if coded is None else coded.scales
    if is_convolution(layer):
        return scales * by_channel(layer, own)
    # Scales have length 1 along what is summed over: a sum of one product.
    axes = kernel.coding.axes
    shape = [1 if axis in axes else n for axis, n in enumerate(kernel.shape)]
    return product(layer, scales, keras.ops.broadcast_to(own, shape))
