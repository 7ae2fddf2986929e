"""Adaptive rounding: round each weight up or down to minimize the output error.

Rounding to nearest minimizes the error of each entry. Adaptive rounding minimizes the
error of the sum `w'x`, computed from second moments of the inputs x. The paper also
includes the following activation. Second moments do not contain enough information for
that, and every step would need all samples.

Source: Nagel, Amjad, van Baalen, Louizos and Blankevoort, "Up or Down? Adaptive
Rounding for Post-Training Quantization", 2020.
"""

from collections.abc import Callable

import numpy as np

from kerasmem.compression.quantize.on_data.moments import Moments

_LOW, _HIGH = -0.1, 1.1
"""Ends of the stretched sigmoid, which is clipped to [0, 1] and reaches both ends."""

_STEPS, _RATE, _WARM_UP = 1000, 0.02, 0.2
_WEIGHT, _FIRST_POWER, _LAST_POWER = 0.3, 20.0, 2.0


def adapted_codes(
    moments: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    """Return adaptively rounded codes of a kernel in matrix form.

    No output has a larger squared error than with rounding to nearest. Zeros and the
    largest codes stay, because the largest codes determine the scale. `weights` are
    float64, and `steps` are the steps of their codes, both (groups, K, outputs).
    """
    moments = moments.settled
    exact = weights / steps
    nearest, down = np.clip(np.rint(exact), -limit, limit), np.floor(exact)
    target = moments.mixed @ weights
    noise = nearest * steps - weights
    usual = (noise * (moments.rounded @ noise)).sum(-2, keepdims=True)
    gradient_scale = 2 * steps / np.where(usual > 0, usual, 1.0)
    up = _relaxed(
        exact - down,
        lambda part: (
            gradient_scale * (moments.rounded @ ((down + part) * steps) - target)
        ),
    )
    keeps_nearest = (weights == 0) | (np.abs(nearest) == limit)
    codes = np.where(keeps_nearest, nearest, np.clip(down + (up > 0.5), -limit, limit))
    return moments.better(codes, nearest, (weights, steps))


def _relaxed(
    begin: np.ndarray, slope: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Minimize the error over fractions in [0, 1] that are driven towards 0 or 1.

    `slope` returns the gradient of the error.
    """
    inside = (np.clip(begin, 1e-4, 1 - 1e-4) - _LOW) / (_HIGH - _LOW)
    x = np.log(inside / (1 - inside))
    first, second, part = np.zeros_like(x), np.zeros_like(x), begin
    for step in range(1, _STEPS + 1):
        sigmoid = 1 / (1 + np.exp(-x))
        part = np.clip(_LOW + (_HIGH - _LOW) * sigmoid, 0, 1)
        moves = (part > 0) & (part < 1)
        inner = (_HIGH - _LOW) * sigmoid * (1 - sigmoid)
        gradient = (slope(part) + _towards_ends(part, step)) * inner * moves
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * np.square(gradient)
        mean = first / (1 - 0.9**step)
        x -= _RATE * mean / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return part


def _towards_ends(part: np.ndarray, step: int) -> np.ndarray | float:
    late = (step / _STEPS - _WARM_UP) / (1 - _WARM_UP)
    if late <= 0:
        return 0.0
    fall = 0.5 * (1 + np.cos(np.pi * late))
    power = _LAST_POWER + (_FIRST_POWER - _LAST_POWER) * fall
    side = 2 * part - 1
    return -2 * _WEIGHT * power * np.abs(side) ** (power - 1) * np.sign(side)
