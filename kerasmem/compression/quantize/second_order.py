"""Second-order rounding: what one weight loses, the weights after it make up for.

The rows of a kernel are rounded one by one, those of the largest inputs first. What is
lost of a row goes to the rows that are not rounded yet, by the inverse of the second
moments of the inputs, so that what comes out changes least.

Source: Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training
Quantization for Generative Pre-trained Transformers", 2022.
"""

import numpy as np

from kerasmem.compression.quantize.moments import Moments

_DAMPING = 0.01
"""Share of the mean diagonal that is added to it, so that the inverse is sound."""

_BLOCK = 64
"""So many rows are rounded before those behind them hear of it."""


def second_order_codes(
    moments: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    """Return codes of a kernel as matrices.

    No output has a larger squared error than with codes to nearest. Zeros stay.

    Args:
        moments: of the inputs.
        weights: float64, (groups, K, outputs).
        steps: what the codes are multiplied with, of the same shape.
        limit: the largest code.
    """
    moments = moments.settled()
    nearest = np.clip(np.rint(weights / steps), -limit, limit)
    found = np.empty_like(nearest)
    parts = (moments.rounded, moments.mixed, weights, steps)
    for group, own in enumerate(zip(*parts, strict=True)):
        found[group] = _codes(*own, limit)
    return moments.better(found, nearest, (weights, steps))


def _codes(
    rounded: np.ndarray,
    mixed: np.ndarray,
    weights: np.ndarray,
    steps: np.ndarray,
    limit: int,
) -> np.ndarray:
    """Return the codes of one matrix, (K, outputs)."""
    size, diagonal = len(rounded), np.diagonal(rounded)
    # An input that is always zero says nothing: its weights are rounded to nearest.
    damped = rounded + np.diag(
        _DAMPING * diagonal.mean() + np.where(diagonal > 0, 0.0, 1.0)
    )
    # What the float model makes of its inputs, made of those that rounding left.
    shift = np.linalg.solve(damped, (mixed - rounded) @ weights)
    order = np.argsort(-diagonal, kind="stable")
    inverse = np.linalg.inv(damped[np.ix_(order, order)])
    upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
    left, steps = (weights + shift)[order], steps[order]
    zeros = weights[order] == 0
    codes = np.empty_like(left)
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        lost = np.empty_like(left[start:end])
        for row in range(start, end):
            code = np.clip(np.rint(left[row] / steps[row]), -limit, limit)
            codes[row] = np.where(zeros[row], 0, code)
            error = (left[row] - codes[row] * steps[row]) / upper[row, row]
            left[row + 1 : end] -= np.outer(upper[row, row + 1 : end], error)
            lost[row - start] = error
        left[end:] -= upper[start:end, end:].T @ lost
    return codes[np.argsort(order)]
