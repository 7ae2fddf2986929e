"""Products of inputs and encoded kernels, with dequantized kernels or with integers.

The gradient dequantizes the kernel a second time, so a training step keeps only the
codes. Integer products round their inputs in every call.

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
    """Return the product of inputs and the dequantized kernel, without the bias.

    Args:
        layer: Layer for which `multiplied_weight` returns the kernel.
        inputs: Float inputs.
        kernel: Kernel of the layer.
        again: Whether to dequantize again for the gradient instead of keeping the float
            kernel. Has no effect if the product cannot be transposed.
        in_blocks: Whether the kernel may be dequantized in blocks.
    """
    blocks = _blocks(layer, kernel)
    coded_kernel = kernel.coded.map(
        lambda part: keras.ops.convert_to_tensor(part.value)
    )
    is_scaled = _is_scaled_after(layer, kernel)
    floats = _codes if is_scaled else kernel.decoded

    def forward(inputs: Tensors, *parts: Any) -> Any:
        now = coded_kernel.with_parts(parts)
        if in_blocks:
            total = _in_blocks(layer, inputs, kernel, blocks, floats, now)
        else:
            total = product(layer, inputs, floats(*kernel.tensors(inputs, None, now)))
        if not is_scaled:
            return total
        return total * _kernel_scales(layer, inputs, kernel, now)

    equation = _transposed_equation(layer) if again else None
    if equation is None:
        return forward(inputs, *coded_kernel.parts)
    # A graph keeps the gradient function alive, so avoid references to the layer.
    layout = kernel.without_variables()

    def transposed(gradient: Tensor, *parts: Any) -> Any:
        now = coded_kernel.with_parts(parts)
        return _transposed_in_blocks(equation, gradient, layout, now, blocks)

    return backends.current().linear(forward, transposed, inputs, coded_kernel.parts)


def _codes(coded: Coded, *_: Any) -> Any:
    return keras.ops.cast(coded.codes, "float32")


def _is_scaled_after(layer: Layer, kernel: QuantizedVariable) -> bool:
    """Return whether to scale the outputs instead of the codes.

    A Dense has fewer outputs than weights, so this is cheaper. A 16-bit layer rounds
    the dequantized weight, so its outputs would differ from those after `dequantize`.
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
    """Return the product with a kernel, one block of output channels at a time.

    Args:
        layer: Layer for which `is_product` is true.
        inputs: Its inputs.
        kernel: Its kernel.
        blocks: Blocks of the kernel. A block starts after the block before it.
        floats: Converts codes to the factors. Takes codes, their layout, and 0 or 1 for
            the rows at even or odd positions only.
        coded: Values of the kernel. Defaults to the current ones.
    """

    def whole() -> Any:
        outputs: list[Any] = []
        for block in blocks[0]:
            before = outputs[-1] if outputs else inputs
            own = floats(*kernel.tensors(before, block, coded))
            outputs.append(product(layer, inputs, own))
            del own  # free the block before the next one is dequantized
        if len(outputs) == 1:
            return outputs[0]
        return keras.ops.concatenate(outputs, axis=blocks[1])

    axes = block_axes(layer)
    if axes is None or is_convolution(layer):
        return whole()
    axis, place = axes
    length = kernel.shape[axis]

    def looped(loop: Loop) -> Any:
        halves = _halves(layer, inputs, kernel)
        limit = loop.block_bytes if halves is None else loop.block_bytes // 2
        size = limit * length // (4 * math.prod(kernel.shape))
        size = max(size, _FEWEST, -(-length // loop.most_blocks))

        def outputs_of(start: Any, size: int) -> Any:
            after = inputs if size == length else None
            own = kernel.tensors(after, (axis, start, size), coded)
            if halves is None:
                return product(layer, inputs, floats(*own))
            even, odd = (
                _half_product(layer, x, floats(*own, n)) for n, x in enumerate(halves)
            )
            return even + odd

        return _in_loop(loop, outputs_of, length, size, place)

    is_packed = kernel.coding.bits == 4
    return backends.current().in_loop(looped, whole, inputs, is_packed=is_packed)


def _in_loop(
    loop: Loop, outputs_of: Callable[..., Any], length: int, size: int, axis: int
) -> Any:
    """Return outputs along an axis, computed in a loop over parts.

    Args:
        loop: Loop of the backend.
        outputs_of: Returns the outputs of a part, from its first index and size.
        length: Number of outputs along the axis.
        size: Number of outputs of a part.
        axis: Axis of the outputs, counted from the end.
    """
    count = length // size
    if count < 2:
        return outputs_of(0, length)
    stack = loop.run(lambda number: outputs_of(number * size, size), count)
    parts = keras.ops.moveaxis(stack, 0, axis - 1)
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
    rows = kernel.rows if kernel.coding.bits == 4 else None
    half = None if rows is None else rows.halved()
    if half is None:
        return None
    axis, row_axis = -1, half.axes[-1]
    if isinstance(layer, keras.layers.EinsumDense):
        input_letters, own, _ = einsum_parts(layer.equation)
        letter = own[row_axis]
        if letter not in input_letters:
            return None
        axis = -1 - input_letters[::-1].index(letter)
    missing = 2 * half.shape[row_axis] - inputs.shape[axis]
    if missing:
        fill = [(0, 0)] * len(inputs.shape)
        fill[axis] = (0, missing)
        inputs = keras.ops.pad(inputs, fill)
    after = (slice(None),) * (-1 - axis)
    even, odd = (inputs[(..., slice(n, None, 2), *after)] for n in range(2))
    return even, odd


def _half_product(layer: Layer, inputs: Tensors, kernel: Tensor) -> Any:
    if has_rows_of_outputs(layer):  # XLA would copy the transposed half
        return keras.ops.einsum("...i,oi->...o", inputs, kernel)
    return product(layer, inputs, kernel)


_FEWEST = 64
"""Fewest output channels of a block in a loop: fewer are too short to vectorize."""

_Blocks = tuple[list[tuple[int, int, int] | None], int]
"""Axis, start and size of each block (None for the whole kernel), and the output axis.

The output axis is negative.
"""

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
    """Return the einsum equation of the input gradient. None if there is none."""
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
    """Return the smallest shape of inputs that multiplies the scales of a kernel."""
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

    No backend supports int8 convolutions on every device. Torch cannot sum int8 along
    an axis that is not in the kernel. `_sum_of_codes` needs a free input axis for its
    row of ones.
    """
    if not isinstance(layer, keras.layers.EinsumDense):
        return is_convolution(layer)
    input_letters, own, output = einsum_parts(layer.equation)
    return not set(input_letters) <= {*own, *output} or not row_axes(layer, rank)


def _kernel_scales(
    layer: Layer, inputs: Tensors, kernel: QuantizedVariable, coded: Coded | None = None
) -> Any:
    """Return the scales of a kernel, broadcastable to the product."""
    own = kernel.scales.value if coded is None else coded.scales
    if is_convolution(layer):
        return by_channel(layer, own)
    # Scales have length 1 along summed axes, so each sum has one term.
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
    """Return the product of input codes and kernel codes.

    `zeros` are the zero points of the input rows.
    """
    ops = keras.ops

    def floats(coded: Coded, *_: Any) -> Any:
        return ops.cast(coded.codes, keras.backend.standardize_dtype(codes.dtype))

    blocks = _blocks(layer, kernel)
    if zeros is None:
        return _in_blocks(layer, codes, kernel, blocks, floats)
    # A row of ones sums the kernel's codes in the same pass. Its relative cost is
    # smallest along the longest axis. An axis of unknown length may be short.
    rows = row_axes(layer, len(codes.shape))
    before, after = max(rows, key=lambda pair: codes.shape[pair[0]] or 2)
    fill = [(0, int(axis == before)) for axis in range(len(codes.shape))]
    ones = ops.pad(codes, fill, constant_values=1)
    total = _in_blocks(layer, ones, kernel, blocks, floats)
    skip = (slice(None),) * after
    total, sums = total[(*skip, slice(-1))], total[(*skip, slice(-1, None))]
    return total - ops.cast(_of_rows(layer, zeros, kernel), total.dtype) * sums


def dynamic_product(layer: Layer, inputs: Tensors, kernel: QuantizedVariable) -> Any:
    """Return the integer product of rounded inputs and a symmetric int8 kernel.

    If `kernel.activation_scale` is set, all inputs share this scale and have no zero
    point. Otherwise inputs are rounded in every call, as in LiteRT. A Dense or
    EinsumDense has a scale and a zero point per input row, a convolution per sample.
    Sums are exact: int32 for Dense and EinsumDense, float32 for convolutions. The
    float32 sums are exact up to 518 products per channel, or 1,040 with
    `kernel.activation_scale`.
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
    """Return inputs rounded as in `dynamic_product`, with a gradient."""
    exact = keras.ops.cast(inputs, "float32")
    outputs = round_inputs(exact, summed_axes(layer, inputs))
    return keras.ops.cast(outputs, inputs.dtype)
