"""Rounding whose gradient is that of not rounding (the straight-through estimator).

And rounding to codes times a step that training learns.

Sources: Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons
for Conditional Computation", 2013; Jacob et al., "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference", 2018; of learned steps Esser
et al., "Learned Step Size Quantization", 2020; for the relative form of a step Jain et
al., "Trained Quantization Thresholds for Accurate and Efficient Fixed-Point Inference
of Deep Neural Networks", 2020.
"""

from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.types import Tensor


def round_symmetric(x: Tensor, axes: tuple[int, ...], bits: int = 8) -> Any:
    """Return float weights as `math.quantize` would store them, to the bit.

    The scale is that of the largest entry, so no entry is cut off, and the gradient is
    passed on whole.

    Args:
        x: float32.
        axes: axes that share a scale.
        bits: 8 for codes in [-127, 127], 4 for codes in [-7, 7].
    """
    ops, limit = keras.ops, LIMIT >> (8 - bits)

    def forward(x: Tensor) -> Any:
        largest = ops.max(ops.abs(x), axis=axes, keepdims=True)
        scales = _scales(largest * float(np.float32(1 / limit)))
        return ops.clip(ops.round(x * (1.0 / scales)), -limit, limit) * scales

    return _straight_through(forward, x)


def round_affine(x: Tensor, axes: tuple[int, ...], bits: int = 8) -> Any:
    """Return float weights as `math.quantize_affine` would store them, to the bit.

    Args:
        x: float32.
        axes: axes that share a scale and a zero point.
        bits: 8 or 4.
    """

    def forward(x: Tensor) -> Any:
        low, width = _range(x, axes)
        scales = _scales(width * float(np.float32(1 / ((1 << bits) - 1))))
        codes, zeros = _affine_codes(x, low, 1.0 / scales, bits)
        return (codes - zeros) * scales

    return _straight_through(forward, x)


def round_inputs(x: Tensor, axes: tuple[int, ...]) -> Any:
    """Return inputs as the codes, zero points and scales of `input_codes` read.

    Args:
        x: float32.
        axes: axes that share a scale and a zero point.
    """

    def forward(x: Tensor) -> Any:
        codes, zeros, scales = input_codes(x, axes)
        return (codes - zeros) * scales

    return _straight_through(forward, x)


def input_codes(x: Tensor, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return int8 codes of inputs, their zero points and scales, all as float32.

    The range of a row is that of its entries and zero. The order of operations is that
    of XNNPACK, so that LiteRT finds the same codes.

    Args:
        x: float32.
        axes: axes that share a scale and a zero point; these keep them with size 1.
    """
    low, width = _range(x, axes)
    # A row of zeros has any scale: this one is a normal number, and so is its inverse.
    inverse = 255.0 / keras.ops.maximum(width, 1e-35)
    return *_affine_codes(x, low, inverse, 8), 1.0 / inverse


def _range(x: Tensor, axes: tuple[int, ...]) -> tuple[Any, Any]:
    ops = keras.ops
    low = ops.minimum(ops.min(x, axis=axes, keepdims=True), 0.0)
    return low, ops.maximum(ops.max(x, axis=axes, keepdims=True), 0.0) - low


def _affine_codes(x: Tensor, low: Any, inverse: Any, bits: int) -> tuple[Any, Any]:
    ops = keras.ops
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    zeros = ops.clip(ops.round(least - low * inverse), least, most)
    return ops.clip(ops.round(x * inverse) + zeros, least, most), zeros


def round_to_type(x: Tensor, dtype: str) -> Any:
    """Return float32 values as a smaller float type holds them."""
    ops = keras.ops
    return _straight_through(lambda x: ops.cast(ops.cast(x, dtype), "float32"), x)


def round_to_range(x: Tensor, low: Any, high: Any, bits: int = 8) -> Any:
    """Return floats cut off at a range and rounded to its codes.

    The range is moved a little, so that zero gets a code of its own. What is inside of
    it has gradient 1, what is outside 0. The figures are those of TensorFlow's
    `fake_quant_with_min_max_vars` to the bit, on every backend.

    Args:
        x: of any float type and shape; the arithmetic is float32.
        low: lower end, at most 0, a float32 scalar.
        high: upper end, at least 0. Where both are 0 all becomes 0.
        bits: 2 to 8.
    """
    ops = keras.ops
    exact = ops.cast(x, "float32")
    if backends.current().fuses_fake_quantization:
        # One operation of its own: quicker there than the dozen below.
        outputs = keras.quantizers.fake_quant_with_min_max_vars(exact, low, high, bits)
        return ops.cast(outputs, x.dtype)
    codes = nudged(low, high, 0, (1 << bits) - 1)
    return ops.cast(_rounded_to_codes(exact, *codes), x.dtype)


def divided(x: Tensor, number: float) -> Any:
    """Return a tensor divided by a number, correctly rounded on every backend."""
    # XLA makes a factor of the division by a constant, and a last bit may be another
    # one; a zero that is known only at run time keeps it from that.
    return x / (0.0 * x + number)


def nudged(low: Any, high: Any, first: int, last: int) -> tuple[Any, Any, Any]:
    """Return the ends of a range with zero on a code, and the scale.

    Args:
        low: lower end, at most 0, float32.
        high: upper end, at least 0, likewise.
        first: the first code.
        last: the last one.
    """
    ops = keras.ops
    empty = ops.logical_and(low == 0, high == 0)
    width = ops.where(empty, ops.ones_like(high), high - low)
    scale = divided(width, last - first)
    zero = ops.clip(first - low / scale, first, last)
    whole = ops.floor(zero)
    zero = whole + ops.cast(zero - whole >= 0.5, "float32")
    none = ops.zeros_like(scale)
    start = ops.where(empty, none, (first - zero) * scale)
    return start, ops.where(empty, none, (last - zero) * scale), scale


@keras.ops.custom_gradient
def _rounded_to_codes(x: Tensor, start: Any, stop: Any, scale: Any) -> Any:
    ops = keras.ops
    zero = ops.floor(0.5 - start / scale)
    inside = ops.minimum(ops.maximum(x, start), stop)
    codes = ops.floor((inside - start) / scale - zero + 0.5)

    def gradient(*values: Any, upstream: Any = None) -> Any:
        upstream = values[0] if upstream is None else upstream
        inside = ops.logical_and(x >= start, x <= stop)
        none = (ops.zeros_like(each) for each in (start, stop, scale))
        return (ops.where(inside, upstream, ops.zeros_like(upstream)), *none)

    return codes * scale, gradient


def _straight_through(forward: Any, x: Tensor) -> Any:
    @keras.ops.custom_gradient
    def rounded(x: Tensor) -> Any:
        # Torch names what comes from above, the other backends give it alone.
        return (
            forward(x),
            lambda *gradients, upstream=None: (
                gradients[0] if upstream is None else upstream
            ),
        )

    return rounded(x)


def _scales(exact: Any) -> Any:
    ops = keras.ops
    scales = ops.where(exact == 0, ops.ones_like(exact), exact)
    return ops.maximum(scales, float(np.finfo(np.float32).tiny))


LEAST = 2.0**-10
"""No step becomes a smaller share of what it was at first than that."""

_END = 1 + 2.0**-20
"""The ends of the codes count as inside, in spite of what float32 makes of them."""


def round_by_steps(
    x: Tensor,
    relative: Any,
    begin: Any,
    low: Any,
    high: Any,
    entries: Any,
) -> Any:
    """Return `clip(round(x / step), low, high) * step` with `step = relative * begin`.

    The gradient passes to `x` where no code is cut off. That of a step is the sum over
    the entries that share it of the upstream gradient times what rounding adds to
    `x / step`, or times the end where a code is cut off, and of this the share
    `1 / sqrt(entries * high)`. It is passed on divided by `begin`: so plain gradient
    descent moves the step as in the paper, while an optimizer that divides gradients by
    their size, such as Adam, moves steps of every size by the same share of themselves.

    Args:
        x: float32.
        relative: steps as shares of `begin`, float32, of its shape.
        begin: steps as they were at first, above 0, of as many axes as `x` or none.
        low: lowest code, at most 0; a number or a scalar.
        high: highest code, likewise at least 0; the larger of both counts.
        entries: number of entries that share a step, those of one sample where `x` is
            a batch.
    """
    ops = keras.ops

    @ops.custom_gradient
    def rounded(
        x: Tensor, relative: Any, begin: Any, low: Any, high: Any, entries: Any
    ) -> Any:
        steps = ops.maximum(relative, LEAST) * begin
        ratios = x * (1.0 / steps)
        codes = ops.clip(ops.round(ratios), low, high)

        def gradient(*values: Any, upstream: Any = None) -> Any:
            # Torch names what comes from above, the other backends give it alone.
            upstream = values[0] if upstream is None else upstream
            inside = ops.logical_and(ratios >= low * _END, ratios <= high * _END)
            of_steps = upstream * ops.where(inside, codes - ratios, codes)
            # There is no code but that of zero where all was zero so far.
            highest = ops.maximum(ops.maximum(high, -low), 1.0)
            share = 1.0 / ops.sqrt(entries * highest)
            step_gradient = _summed_like(begin, of_steps) * share / begin
            of_x = ops.where(inside, upstream, ops.zeros_like(upstream))
            none = (ops.zeros_like(each) for each in (begin, low, high, entries))
            return of_x, step_gradient, *none

        return codes * steps, gradient

    numbers = (ops.convert_to_tensor(n, "float32") for n in (low, high, entries))
    return rounded(x, relative, begin, *numbers)


def _summed_like(steps: Any, x: Tensor) -> Any:
    if len(steps.shape) == 0:
        return keras.ops.sum(x)
    sum_axes = tuple(axis for axis, length in enumerate(steps.shape) if length == 1)
    return keras.ops.sum(x, axis=sum_axes, keepdims=True) if sum_axes else x
