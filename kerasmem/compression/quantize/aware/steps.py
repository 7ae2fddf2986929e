"""Rounding to codes times a step that training learns.

Sources: Esser et al., "Learned Step Size Quantization", 2020; for the relative form of
a step Jain et al., "Trained Quantization Thresholds for Accurate and Efficient
Fixed-Point Inference of Deep Neural Networks", 2020.
"""

from typing import Any

import keras

LEAST = 2.0**-10
"""No step becomes a smaller share of what it was at first than that."""

_END = 1 + 2.0**-20
"""The ends of the codes count as inside, in spite of what float32 makes of them."""


def round_by_steps(
    x: Any,
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
        x: Any, relative: Any, begin: Any, low: Any, high: Any, entries: Any
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
            summed = _summed_like(begin, of_steps) * share / begin
            of_x = ops.where(inside, upstream, ops.zeros_like(upstream))
            none = (ops.zeros_like(each) for each in (begin, low, high, entries))
            return of_x, summed, *none

        return codes * steps, gradient

    numbers = (ops.convert_to_tensor(n, "float32") for n in (low, high, entries))
    return rounded(x, relative, begin, *numbers)


def _summed_like(steps: Any, x: Any) -> Any:
    """Return the sums of what shares a step, in the shape of the steps."""
    if len(steps.shape) == 0:
        return keras.ops.sum(x)
    shared = tuple(axis for axis, length in enumerate(steps.shape) if length == 1)
    return keras.ops.sum(x, axis=shared, keepdims=True) if shared else x
