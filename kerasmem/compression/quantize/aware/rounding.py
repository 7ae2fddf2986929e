"""Rounding operations with gradients: straight-through and learned steps.

Sources: Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons
for Conditional Computation", 2013; Jacob et al., "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference", 2018. Learned steps: Esser et
al., "Learned Step Size Quantization", 2020. Relative steps: Jain et al., "Trained
Quantization Thresholds for Accurate and Efficient Fixed-Point Inference of Deep Neural
Networks", 2020.
"""

from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.types import Tensor


def round_symmetric(x: Tensor, axes: tuple[int, ...], bits: int = 8) -> Any:
    """Round a float32 weight exactly as `math.quantize`, straight-through.

    The largest entry sets the scale, so no gradient is clipped. `axes` share a scale.
    """
    ops, limit = keras.ops, LIMIT >> (8 - bits)

    def forward(x: Tensor) -> Any:
        largest = ops.max(ops.abs(x), axis=axes, keepdims=True)
        scales = _scales(largest * float(np.float32(1 / limit)))
        return ops.clip(ops.round(x * (1.0 / scales)), -limit, limit) * scales

    return _straight_through(forward, x)


def round_affine(x: Tensor, axes: tuple[int, ...], bits: int = 8) -> Any:
    """Round a float32 weight exactly as `math.quantize_affine`, straight-through."""

    def forward(x: Tensor) -> Any:
        low, width = _range(x, axes)
        scales = _scales(width * float(np.float32(1 / ((1 << bits) - 1))))
        codes, zeros = _affine_codes(x, low, 1.0 / scales, bits)
        return (codes - zeros) * scales

    return _straight_through(forward, x)


def round_inputs(x: Tensor, axes: tuple[int, ...]) -> Any:
    """Round float32 inputs with `input_codes`, straight-through."""

    def forward(x: Tensor) -> Any:
        codes, zeros, scales = input_codes(x, axes)
        return (codes - zeros) * scales

    return _straight_through(forward, x)


def input_codes(x: Tensor, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return int8 codes, zero points and scales of float32 inputs, all as float32.

    The range of a row includes zero. The order of operations follows XNNPACK, so that
    LiteRT computes the same codes. `axes` share a scale and keep size 1.
    """
    low, width = _range(x, axes)
    # For a row of zeros, use a scale that is a normal number and has a normal inverse.
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
    """Round float32 values to a smaller float type, straight-through."""
    ops = keras.ops
    return _straight_through(lambda x: ops.cast(ops.cast(x, dtype), "float32"), x)


def round_to_range(x: Tensor, low: Any, high: Any, bits: int = 8) -> Any:
    """Clip floats to a range and round them to its codes.

    The range is shifted so that zero has an exact code. The gradient is 1 inside the
    range and 0 outside. The results equal TensorFlow's `fake_quant_with_min_max_vars`
    to the bit on every backend.

    Args:
        x: Float tensor. Arithmetic is float32.
        low: Lower end, a float32 scalar of at most 0.
        high: Upper end, a float32 scalar of at least 0. If both ends are 0, all outputs
            are 0.
        bits: Integer in [2, 8].
    """
    ops = keras.ops
    exact = ops.cast(x, "float32")
    if backends.current().fuses_fake_quantization:
        # A fused operation is faster than the operations below.
        outputs = keras.quantizers.fake_quant_with_min_max_vars(exact, low, high, bits)
        return ops.cast(outputs, x.dtype)
    codes = nudged(low, high, 0, (1 << bits) - 1)
    return ops.cast(_rounded_to_codes(exact, *codes), x.dtype)


def divided(x: Tensor, number: float) -> Any:
    """Divide a tensor by a number, correctly rounded on every backend."""
    # XLA replaces division by a constant with multiplication, which changes the last
    # bit. Adding a zero that is unknown at compile time prevents this.
    return x / (0.0 * x + number)


def nudged(low: Any, high: Any, first: int, last: int) -> tuple[Any, Any, Any]:
    """Return the ends of a range shifted to give zero an exact code, and the scale.

    `low` is at most 0 and `high` at least 0. Codes run from `first` to `last`.
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
        # Torch passes the upstream gradient by keyword, other backends by position.
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
"""Smallest ratio of a learned step to its initial value."""

_END = 1 + 2.0**-20
"""Tolerance that keeps the last codes inside in spite of float32 rounding."""


def round_by_steps(
    x: Tensor,
    relative: Any,
    begin: Any,
    low: Any,
    high: Any,
    entries: Any,
) -> Any:
    """Return `clip(round(x / step), low, high) * step` with `step = relative * begin`.

    The gradient of `x` is the upstream gradient, or 0 for clipped codes. The gradient
    of a step sums `upstream * (code - x / step)` over its entries, or `upstream * code`
    for clipped codes. The sum is scaled by `1 / sqrt(entries * high)` as in the paper
    and divided by `begin`. Gradient descent then moves the step as in the paper.
    Optimizers that normalize gradients, such as Adam, move all steps by the same
    relative amount.

    Args:
        x: Float32 tensor.
        relative: Steps relative to `begin`, float32, in its shape.
        begin: Positive initial steps, scalar or with the rank of `x`.
        low: Lowest code, at most 0.
        high: Highest code, at least 0. The larger magnitude of both ends counts.
        entries: Number of entries per step, in one sample if `x` is a batch.
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
            # Torch passes the upstream gradient by keyword, others by position.
            upstream = values[0] if upstream is None else upstream
            inside = ops.logical_and(ratios >= low * _END, ratios <= high * _END)
            of_steps = upstream * ops.where(inside, codes - ratios, codes)
            # While all inputs have been zero, the only code is 0.
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
