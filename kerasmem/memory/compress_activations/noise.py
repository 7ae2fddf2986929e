"""Chance for the rounding, taken from the activations themselves.

No stream of random numbers is touched and no state is kept: a dropout layer draws what
it would draw, on JAX a step stays a pure function, and a training that is resumed
rounds as one that went on. What is random from step to step are the last bits of sums
of activations.
"""

from typing import Any

import numpy as np
from keras import ops

from kerasmem.memory.compress_activations.math import NOISE_LEVELS

_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, are spread evenly."""


def rounding_noise(known: Any, seed: int) -> Any:
    """Return numbers from [0, 1) for the groups of a tensor, one an entry.

    An entry's is the sum, modulo 1, of one for its group and one for its place in the
    group, so that over all draws any two entries are independent of each other. This is
    all it takes for the error of a sum of entries to vary as if all of them were.

    Args:
        known: float32, finite, `(..., count, length)`.
        seed: of what is drawn beforehand.
    """
    random = np.random.default_rng(seed)
    length = known.shape[-1]
    starts = ops.convert_to_tensor(random.random(length), dtype="float32")
    # Odd, so that modulo a power of two they leave no level out.
    strides = random.integers(NOISE_LEVELS // 2, size=length) * 2 + 1
    strides = ops.convert_to_tensor(strides, dtype="float32")
    sums = ops.sum(known, axis=-1, keepdims=True)
    bits = ops.bitwise_and(ops.view(sums, dtype="int32"), NOISE_LEVELS - 1)
    drawn = ops.cast(bits, "float32") / NOISE_LEVELS
    first = _level(ops.sum(drawn) + random.random())
    second = _fraction(first * random.integers(1, NOISE_LEVELS) + random.random())
    stride = ops.floor(second * (NOISE_LEVELS // 2)) * 2 + 1
    groups = _level(drawn + _spread(drawn)) * stride + first
    places = _level(starts + first * strides) + 0.5 / NOISE_LEVELS
    both = _fraction(groups) + places
    return both - ops.floor(both)


def _spread(like: Any) -> Any:
    """Return evenly spread numbers, so that equal groups are not rounded equally."""
    counted = ops.cumsum(ops.reshape(ops.ones_like(like), (-1,)))
    return ops.reshape(_fraction(counted * _GOLDEN), ops.shape(like))


def _fraction(x: Any) -> Any:
    return x - ops.floor(x)


def _level(x: Any) -> Any:
    return ops.floor(_fraction(x) * NOISE_LEVELS) / NOISE_LEVELS
