"""Adaptive rounding: each weight up or down, for least error in what comes out.

A layer that multiplies inputs x by weights w gives w'x. Rounding to nearest makes each
entry's error small; here the error of the sum counts, which second moments of x tell.
An activation that follows is not looked at, which the paper does: moments do not tell
of it, and without them every step would go through all samples.

Source: Nagel, Amjad, van Baalen, Louizos and Blankevoort, "Up or Down? Adaptive
Rounding for Post-Training Quantization", 2020.
"""

from collections.abc import Callable

import numpy as np

from kerasmem.compression.quantize.on_data.moments import Moments

_LOW, _HIGH = -0.1, 1.1
"""Ends of the sigmoid before it is cut off at 0 and 1, so that it reaches both."""

_STEPS, _RATE, _WARM_UP = 1000, 0.02, 0.2
_WEIGHT, _FIRST_POWER, _LAST_POWER = 0.3, 20.0, 2.0


def adapted_codes(
    moments: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    """Return codes, each the next below or above its weight, of a kernel as matrices.

    No output has a larger squared error than with codes to nearest. Zeros stay, and so
    do the largest codes, which the scale hangs on.

    Args:
        moments: of the inputs.
        weights: float64, (groups, K, outputs).
        steps: what the codes are multiplied with, of the same shape.
        limit: the largest code.
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
    """Return parts in [0, 1] with least error, driven to 0 or 1 as time goes on.

    Args:
        begin: the first ones.
        slope: returns the derivative of the error by each part.
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
