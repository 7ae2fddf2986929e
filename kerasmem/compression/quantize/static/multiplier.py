"""Multiplying integers by a real number, with the rounding of LiteRT's kernels.

The number is written as `mantissa * 2 ** (exponent - 31)` with an int32 mantissa. The
product of two int32 numbers takes 64 bits, which JAX does not have by default: it is
put together of halves here, exactly, so that all backends and XLA give the same.

Source: Jacob and others, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018.
"""

from typing import Any

import keras
import numpy as np

_MOST = 1 << 30
"""Integers beyond this are clipped: times any multiplier in use they saturate."""


def fixed_point(numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 mantissas and exponents of positive numbers.

    Numbers below 2 ** -31 become zero.

    Args:
        numbers: float64, at most 2 ** 15.

    Example:
        >>> mantissa, exponent = fixed_point(np.array([0.75, 1e-12]))
        >>> (mantissa / 2**31 * 2.0**exponent).tolist()
        [0.75, 0.0]
    """
    mantissa, exponent = np.frexp(np.asarray(numbers, np.float64))
    mantissa = np.floor(mantissa * (1 << 31) + 0.5).astype(np.int64)
    carry = mantissa == 1 << 31
    mantissa, exponent = np.where(carry, mantissa // 2, mantissa), exponent + carry
    none = exponent < -30
    mantissa, exponent = np.where(none, 0, mantissa), np.where(none, 0, exponent)
    return mantissa.astype(np.int32), exponent.astype(np.int32)


def times(integers: Any, mantissa: Any, exponent: Any, *, twice: bool = True) -> Any:
    """Return `integers * mantissa * 2 ** (exponent - 31)`, rounded to int32.

    Args:
        integers: an int32 tensor, within 2 ** 30 after a shift by a positive exponent.
        mantissa: int32, from 0, an array or tensor that broadcasts against it.
        exponent: int32, in [-30, 15], of the shape of `mantissa`.
        twice: round the product to 31 bits and the result again, halves away from
            zero, as LiteRT's kernels do; False rounds once, halves up.
    """
    ops = keras.ops
    mantissa, exponent = _int32(mantissa), _int32(exponent)
    left, right = ops.maximum(exponent, 0), ops.maximum(-exponent, 0)
    most = ops.right_shift(_int32(_MOST), left)
    shifted = ops.left_shift(ops.clip(integers, -most, most), left)
    if twice:
        return _divided(_high(shifted, mantissa, _int32(1 << 15)), right)
    # The halves that the shift below rounds away from are of no lower bits.
    nudge = ops.where(right == 0, _int32(1 << 15), _int32(0))
    high = _high(shifted, mantissa, nudge)
    half = ops.right_shift(ops.left_shift(_int32(1), right), _int32(1))
    return ops.right_shift(high + half, right)


def _high(a: Any, b: Any, nudge: Any) -> Any:
    """Return `(a * b + nudge * 2 ** 15) // 2 ** 31` for |a| <= 2 ** 30, b >= 0."""
    low_a, low_b = _bits(a, 15), _bits(b, 16)
    high_a, high_b = _shift(a, 15), _shift(b, 16)
    one, two, low = high_a * low_b, low_a * high_b, low_a * low_b
    carry = _bits(one, 16) + 2 * _bits(two, 15) + _shift(low, 15) + nudge
    return high_a * high_b + _shift(one, 16) + _shift(two, 15) + _shift(carry, 16)


def _divided(x: Any, bits: Any) -> Any:
    """Return `x / 2 ** bits`, rounded, halves away from zero."""
    ops = keras.ops
    mask = ops.left_shift(_int32(1), bits) - 1
    threshold = ops.right_shift(mask, _int32(1)) + ops.cast(x < 0, "int32")
    over = ops.cast(ops.bitwise_and(x, mask) > threshold, "int32")
    return ops.right_shift(x, bits) + over


def _shift(x: Any, bits: int) -> Any:
    return keras.ops.right_shift(x, _int32(bits))


def _bits(x: Any, count: int) -> Any:
    return keras.ops.bitwise_and(x, _int32((1 << count) - 1))


def _int32(x: Any) -> Any:
    return keras.ops.cast(keras.ops.convert_to_tensor(x), "int32")
