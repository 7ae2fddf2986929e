"""Second-order rounding (GPTQ): later weights compensate for the error of earlier ones.

The rows of a kernel are rounded one by one, largest inputs first. The error of a row is
distributed over the remaining rows by the inverse second moments of the inputs. This
reduces the output error.

Source: Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training
Quantization for Generative Pre-trained Transformers", 2022.
"""

import numpy as np

from kerasmem.compression.quantize.on_data.moments import Moments

_DAMPING = 0.01
"""Fraction of the mean diagonal to add to the diagonal before inversion."""

_BLOCK = 64
"""Number of rows to round before the update of later rows."""


def second_order_codes(
    moments: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    """Return the codes of a kernel in matrix form.

    No output has a larger squared error than with rounding to nearest. Zeros stay.
    `weights` are float64 and `steps` are the steps of their codes, both (groups, K,
    outputs).
    """
    input_moments = moments.settled.rounded
    nearest = np.clip(np.rint(weights / steps), -limit, limit)
    codes = np.empty_like(nearest)
    parts = (input_moments, weights, steps)
    for group, own in enumerate(zip(*parts, strict=True)):
        codes[group] = _codes(*own, limit)
    return Moments(input_moments, input_moments, moments.rows).better(
        codes, nearest, (weights, steps)
    )


def _codes(
    rounded: np.ndarray, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    size, diagonal = len(rounded), np.diagonal(rounded)
    # Weights of an input that is always zero are rounded to nearest.
    damped_moments = rounded + np.diag(
        _DAMPING * diagonal.mean() + np.where(diagonal > 0, 0.0, 1.0)
    )
    order = np.argsort(-diagonal, kind="stable")
    # Reversed rows make the Cholesky factor upper triangular.
    moments_in_order = damped_moments[np.ix_(order[::-1], order[::-1])]
    upper = _inverse(np.linalg.cholesky(moments_in_order)[::-1, ::-1])
    remaining_weights, steps = weights[order], steps[order]
    zeros = remaining_weights == 0
    codes = np.empty_like(remaining_weights)
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        errors = np.empty_like(remaining_weights[start:end])
        for row in range(start, end):
            code = np.clip(np.rint(remaining_weights[row] / steps[row]), -limit, limit)
            codes[row] = np.where(zeros[row], 0, code)
            error = (remaining_weights[row] - codes[row] * steps[row]) / upper[row, row]
            remaining_weights[row + 1 : end] -= np.outer(
                upper[row, row + 1 : end], error
            )
            errors[row - start] = error
        remaining_weights[end:] -= upper[start:end, end:].T @ errors
    return codes[np.argsort(order)]


def _inverse(upper: np.ndarray) -> np.ndarray:
    half = len(upper) // 2
    if half < _BLOCK:
        return np.triu(np.linalg.inv(upper))
    first, last = _inverse(upper[:half, :half]), _inverse(upper[half:, half:])
    inverse = np.zeros_like(upper)
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[:half, half:] = -first @ (upper[:half, half:] @ last)
    return inverse
