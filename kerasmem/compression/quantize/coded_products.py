"""Products of inputs and codes: of floats made of these, or of integers.

Where a gradient follows, the floats of the codes are made again for it, so that a step
keeps the codes alone. Inputs of integers are rounded in every call.

Sources: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023;
Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference: A
whitepaper", 2018.
"""

import math
from collections.abc import Callable
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.recompute import Loop
from kerasmem.compression.quantize.aware.rounding import input_codes, round_inputs
from kerasmem.compression.quantize.coding import Coded
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.products import (
    block_axes,
    has_rows_of_outputs,
    is_convolution,
    product,
    row_axes,
    summed_axes,
)
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.graph.kernels import by_channel, einsum_parts
from kerasmem.types import Layer, Tensor, Tensors


def float_product(
    layer: Layer,
    inputs: Tensors,
    kernel: QuantizedVariable,
    *,
    again: bool = False,
    in_blocks: bool = True,
) -> Any:
    """Return the layer's product of its inputs and its kernel, without the bias.

    Args:
        layer: one of which `multiplied_weight` knew the kernel.
        inputs: float inputs of it.
        kernel: its kernel.
        again: whether what is multiplied with is made a second time for the gradient,
            where the product can be transposed, and not kept.
        in_blocks: whether the kernel may become float in blocks.
    """
    blocks = _blocks(layer, kernel) if in_blocks else _WHOLE
    coded_kernel = kernel.coded.map(
        lambda part: keras.ops.convert_to_tensor(part.value)
    )
    is_scaled = _is_scaled_after(layer, kernel)
    floats = _codes if is_scaled else kernel.decoded

    def forward(inputs: Tensors, *parts: Any) -> Any:
        now = coded_kernel.with_parts(parts)
        total = _in_blocks(layer, inputs, kernel, blocks, floats, now)
        if not is_scaled:
            return total
        return total * _kernel_scales(layer, inputs, kernel, now)

    equation = _transposed_equation(layer) if again else None
    if equation is None:
        return forward(inputs, *coded_kernel.parts)
    # A graph keeps what makes its gradient, so that knows neither layer nor variables.
    layout = kernel.without_variables()

    def transposed(gradient: Tensor, *parts: Any) -> Any:
        now = coded_kernel.with_parts(parts)
        return _transposed_in_blocks(equation, gradient, layout, now, blocks)

    return backends.current().linear(forward, transposed, inputs, coded_kernel.parts)


def _codes(coded: Coded, *_: Any) -> Any:
    return keras.ops.cast(coded.codes, "float32")


def _is_scaled_after(layer: Layer, kernel: QuantizedVariable) -> bool:
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
    )


def _in_blocks(
    layer: Layer,
    inputs: Tensors,
    kernel: QuantizedVariable,
    blocks: "_Blocks",
    floats: Callable[..., Any],
    coded: Coded | None = None,
) -> Any:
    """Return the layer's product with a kernel, one block of output channels at a time.

    Args:
        layer: Layer for which `is_product` is true.
        inputs: Its inputs. No block becomes float before they exist.
        kernel: Its kernel.
        blocks: Blocks of the kernel.
        floats: Returns the tensor to multiply with, of codes of all output channels or
            some, their layout and, for every second input, 0 or 1.
        coded: Tensors with the values of the kernel. `None` for the current ones.
    """

    def whole() -> Any:
        outputs: list[Any] = []
        for block in blocks[0]:
            before = outputs[-1] if outputs else inputs
            own = floats(*kernel.tensors(before, block, coded))
            outputs.append(product(layer, inputs, own))
            del own  # before the next block's floats are made
        if len(outputs) == 1:
            return outputs[0]
        return keras.ops.concatenate(outputs, axis=blocks[1])

    axes = block_axes(layer)
    if axes is None or is_convolution(layer):
        return whole()
    axis, place = axes
    length, halves = kernel.shape[axis], _halves(layer, inputs, kernel)

    def outputs_of(start: Any, size: int) -> Any:
        after = inputs if size == length else None
        own = kernel.tensors(after, (axis, start, size), coded)
        if halves is None:
            return product(layer, inputs, floats(*own))
        even, odd = (product(layer, x, floats(*own, n)) for n, x in enumerate(halves))
        return even + odd

    size = max(_LOOP_BYTES * length // (4 * math.prod(kernel.shape)), _FEWEST)

    def looped(loop: Loop) -> Any:
        return _in_loop(loop, outputs_of, length, size, place)

    return backends.current().in_loop(looped, whole, inputs)


def _in_loop(
    loop: Loop, outputs_of: Callable[..., Any], length: int, size: int, axis: int
) -> Any:
    """Return outputs along an axis, computed in a loop over parts.

    Args:
        loop: Calls a function for each part and stacks the results.
        outputs_of: Returns the outputs of a part, from its first index and size.
        length: Number of outputs along the axis.
        size: Number of outputs of a part.
        axis: Axis of the outputs, counted from the end.
    """
    count = length // size
    if count < 2:
        return outputs_of(0, length)
    stacked = loop(lambda number: outputs_of(number * size, size), count)
    parts = keras.ops.moveaxis(stacked, 0, axis - 1)
    shape = list(keras.ops.shape(parts))
    shape[axis - 1 :] = [count * size, *shape[axis:][1:]]
    outputs = keras.ops.reshape(parts, shape)
    if count * size == length:
        return outputs
    rest = outputs_of(count * size, length - count * size)
    return keras.ops.concatenate([outputs, rest], axis=axis)


def _halves(
    layer: Layer, inputs: Tensors, kernel: QuantizedVariable
) -> tuple[Any, Any] | None:
    """Return the inputs at even and at odd positions, for 4-bit codes.

    Two codes share a byte. XLA takes ten times as long to interleave them again as to
    multiply them with every second input.
    """
    rows = kernel.rows
    if kernel.coding.bits != 4 or rows is None or rows.halved() is None:
        return None
    axis = -1
    if isinstance(layer, keras.layers.EinsumDense):
        input_letters, own, _ = einsum_parts(layer.equation)
        letter = own[rows.axes[-1]]
        if letter not in input_letters:
            return None
        axis = -1 - input_letters[::-1].index(letter)
    after = (slice(None),) * (-1 - axis)
    even, odd = (inputs[(..., slice(n, None, 2), *after)] for n in range(2))
    return even, odd


_LOOP_BYTES = 2**20
"""Bytes of a block of a kernel, as float32, in a loop: it has to fit into the cache."""
_FEWEST = 16
"""Fewest output channels of such a block."""

_Blocks = tuple[list[tuple[int, int, int] | None], int]
"""Axis, first index and size of each block of a kernel, `None` for a single block; and
the axis of the output, counted from the end."""

_WHOLE: _Blocks = ([None], -1)


def _transposed_in_blocks(
    equation: str,
    gradient: Tensor,
    kernel: QuantizedVariable,
    coded: Coded,
    blocks: _Blocks,
) -> Any:
    total = None
    after = (slice(None),) * (-1 - blocks[1])
    for block in blocks[0]:
        cut = ... if block is None else (..., slice(block[1], sum(block[1:])), *after)
        own = kernel.decoded(*kernel.tensors(total, block, coded))
        change = keras.ops.einsum(equation, gradient[cut], own)
        del own
        total = change if total is None else total + change
    return total


def _blocks(layer: Layer, kernel: QuantizedVariable) -> _Blocks:
    axes = block_axes(layer)
    if kernel.block_count == 1 or axes is None:
        return _WHOLE
    axis, place = axes
    length = kernel.shape[axis]
    size = -(-length // kernel.block_count)
    starts = range(0, length, size)
    return [(axis, start, min(size, length - start)) for start in starts], place


def _transposed_equation(layer: Layer) -> str | None:
    """Return what makes the gradient of inputs of that of outputs, and the kernel.

    None for a layer whose product is not transposed so.
    """
    if is_convolution(layer):
        return None
    if has_rows_of_outputs(layer):
        return "...o,oi->...i"
    if not isinstance(layer, keras.layers.EinsumDense):
        return "...o,io->...i"
    input_letters, own, output = einsum_parts(layer.equation)
    is_known = set(input_letters) <= {*own, *output}
    return f"{output},{own}->{input_letters}" if is_known else None


def _unit(layer: Layer, inputs: Tensors, kernel: QuantizedVariable) -> tuple[int, ...]:
    """Return the least shape of inputs that multiplies the scales of a kernel.

    Args:
        layer: one of which `is_product` was true, no convolution.
        inputs: its inputs.
        kernel: its kernel.
    """
    rank = len(inputs.shape)
    if not isinstance(layer, keras.layers.EinsumDense):
        return (1,) * rank
    input_letters, own, _ = einsum_parts(layer.equation)
    axes = kernel.coding.axes
    sizes = {own[i]: n for i, n in enumerate(kernel.shape) if i not in axes}
    letters = input_letters.replace(
        "...", "." * (rank - len(input_letters.replace("...", "")))
    )
    return tuple(sizes.get(letter, 1) for letter in letters)


def _sums_floats(layer: Layer, rank: int) -> bool:
    """Return whether integers are summed as float32.

    No backend convolves int8 on every device, and torch has no int8 sum along an axis
    that a kernel does not have. A kernel with all axes of its inputs leaves no axis for
    the row of ones of `_sum_of_codes`.
    """
    if not isinstance(layer, keras.layers.EinsumDense):
        return is_convolution(layer)
    input_letters, own, output = einsum_parts(layer.equation)
    return not set(input_letters) <= {*own, *output} or not row_axes(layer, rank)


def _kernel_scales(
    layer: Layer, inputs: Tensors, kernel: QuantizedVariable, coded: Coded | None = None
) -> Any:
    """Return the scales of a kernel, broadcastable to the layer's product.

    Args:
        layer: one of which `is_product` was true.
        inputs: its inputs.
        kernel: its kernel.
        coded: tensors with the values of the kernel; None for those of now.
    """
    own = kernel.scales.value if coded is None else coded.scales
    if is_convolution(layer):
        return by_channel(layer, own)
    # Scales have length 1 along what is summed over: a sum of one product.
    axes = kernel.coding.axes
    shape = [1 if axis in axes else n for axis, n in enumerate(kernel.shape)]
    ones = keras.ops.ones(_unit(layer, inputs, kernel), "float32")
    return product(layer, ones, keras.ops.broadcast_to(own, shape))


def _of_rows(layer: Layer, values: Any, kernel: QuantizedVariable) -> Any:
    if not isinstance(layer, keras.layers.EinsumDense):
        return values
    letters, own, output = einsum_parts(layer.equation)
    rows = {*letters} & {*output}
    shape = [n if own[i] in rows else 1 for i, n in enumerate(kernel.shape)]
    return product(layer, values, keras.ops.ones(shape, "float32"))


def _sum_of_codes(
    layer: Layer, codes: Tensor, kernel: QuantizedVariable, zeros: Any | None
) -> Any:
    """Return the layer's product of the codes of its inputs and of its kernel.

    Args:
        layer: one of which `is_product` is true.
        codes: of its inputs, in the type to multiply in.
        kernel: its kernel.
        zeros: zero points of rows of inputs, to be taken off; None for none.
    """
    ops = keras.ops

    def floats(coded: Coded, *_: Any) -> Any:
        return ops.cast(coded.codes, keras.backend.standardize_dtype(codes.dtype))

    blocks = _blocks(layer, kernel)
    if zeros is None:
        return _in_blocks(layer, codes, kernel, blocks, floats)
    # A row of ones sums the kernel's codes in the same pass over them. It is longest,
    # and adds least, along the longest axis; one of open length may be short.
    rows = row_axes(layer, len(codes.shape))
    before, after = max(rows, key=lambda pair: codes.shape[pair[0]] or 2)
    fill = [(0, int(axis == before)) for axis in range(len(codes.shape))]
    ones = ops.pad(codes, fill, constant_values=1)
    total = _in_blocks(layer, ones, kernel, blocks, floats)
    skip = (slice(None),) * after
    total, sums = total[(*skip, slice(-1))], total[(*skip, slice(-1, None))]
    return total - ops.cast(_of_rows(layer, zeros, kernel), total.dtype) * sums


def dynamic_product(layer: Layer, inputs: Tensors, kernel: QuantizedVariable) -> Any:
    """Return the layer's product of rounded inputs and the codes of its kernel.

    With `kernel.activation_scale`, all inputs share this scale, and no zero point is
    used. Without it, inputs are rounded in every call, as LiteRT does: in a Dense or
    EinsumDense each vector that the kernel multiplies has a scale and a zero point, in
    a convolution each sample. The products of a Dense or EinsumDense are summed as
    int32, exactly. A convolution sums integers as float32, which is exact for channels
    of at most 518 products, or 1,040 with `kernel.activation_scale`.

    Args:
        layer: one of which `is_product` is true.
        inputs: float inputs of it.
        kernel: its kernel, symmetric int8 per channel or as a whole.
    """
    ops = keras.ops
    exact = ops.cast(inputs, "float32")
    scales, zeros = kernel.activation_scale, 0.0
    dtype = "float32" if _sums_floats(layer, len(exact.shape)) else "int8"
    is_shifted = scales is None and dtype == "int8"
    if scales is None:
        codes, zeros, scales = input_codes(exact, summed_axes(layer, exact))
        scales = _of_rows(layer, scales, kernel)
    else:
        codes = ops.clip(ops.round(exact / scales), -LIMIT, LIMIT)
    codes = ops.cast(codes if is_shifted else codes - zeros, dtype)

    total = _sum_of_codes(layer, codes, kernel, zeros if is_shifted else None)
    both = scales * _kernel_scales(layer, inputs, kernel)
    return ops.cast(ops.cast(total, "float32") * both, layer.compute_dtype)


def rounded_inputs(layer: Layer, inputs: Tensors) -> Any:
    """Return inputs of a product as `dynamic_product` rounds them, with a gradient.

    Args:
        layer: one of which `is_product` is true.
        inputs: float inputs of it.
    """
    exact = keras.ops.cast(inputs, "float32")
    outputs = round_inputs(exact, summed_axes(layer, inputs))
    return keras.ops.cast(outputs, inputs.dtype)
