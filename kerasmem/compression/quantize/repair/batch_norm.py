"""What a BatchNormalization does in inference: a factor and an offset per channel."""

from typing import Any

import numpy as np

from kerasmem.graph.values import to_numpy


def factors(norm: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of a BatchNormalization in inference, as float64."""
    mean, variance, gamma, beta = _statistics(norm)
    scale = gamma / np.sqrt(variance + norm.epsilon)
    return scale, beta - mean * scale


def is_sound(norm: Any) -> bool:
    """Return True if all of its numbers are finite and it divides by positive ones."""
    values = _statistics(norm)
    _, variance, _, _ = values
    finite = all(np.isfinite(value).all() for value in values)
    return finite and bool((variance + norm.epsilon > 0).all())


def _statistics(norm: Any) -> tuple[np.ndarray, ...]:
    count = norm.moving_mean.shape[0]
    given = (
        (norm.moving_mean, 0.0),
        (norm.moving_variance, 1.0),
        (norm.gamma if norm.scale else None, 1.0),
        (norm.beta if norm.center else None, 0.0),
    )
    return tuple(
        np.full(count, default) if v is None else to_numpy(v).astype(np.float64)
        for v, default in given
    )
