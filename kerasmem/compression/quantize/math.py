"""Rounding to few bits, with one scale per channel, group or array, on NumPy arrays.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

import numpy as np

from kerasmem.errors import ModelError

LIMIT = 127
"""Symmetric codes lie in [-127, 127]. Code -128 is unused, so that negation is exact.
"""


def quantize(
    values: np.ndarray, axes: tuple[int, ...], bits: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes and float32 scales with `codes * scales` near `values`.

    `bits` is 8, 4 or 3, for codes up to 127, 7 or 3. The axes in `axes` share a scale
    and keep size 1. Scales are positive. The error of an entry is at most half a scale.

    Raises:
        ModelError: If `values` contains NaN or infinity.

    Example:
        >>> codes, scales = quantize(np.array([[1.0, -254.0], [0.5, 127.0]]), (0,))
        >>> scales.tolist()
        [[0.007874015718698502, 2.0]]
        >>> codes.tolist()
        [[127, -127], [64, 64]]
    """
    # Multiply in float32, because compilers turn divisions by constants into products
    # and a compiled training step would get different codes.
    exact = finite(values).astype(np.float32, copy=False)
    largest = np.abs(exact).max(axis=axes, keepdims=True, initial=0.0)
    scales = scales_of(largest, bits)
    return codes_of(exact, scales, bits), scales


def scales_of(largest: np.ndarray, bits: int = 8) -> np.ndarray:
    """Return the float32 scales of symmetric codes from the largest absolute values.

    Example:
        >>> scales_of(np.float32([0.0, 254.0])).tolist()
        [1.0, 2.0]
    """
    return positive_scales(largest * np.float32(1 / _limit(bits)))


def codes_of(values: np.ndarray, scales: np.ndarray, bits: int = 8) -> np.ndarray:
    """Return the nearest symmetric int8 codes of finite values.

    `scales` are positive, float32 and broadcastable to the values.

    Example:
        >>> codes_of(np.array([-9.0, 0.2, 0.3]), np.float32(0.5), bits=4).tolist()
        [-7, 0, 1]
    """
    limit = _limit(bits)
    exact = values.astype(np.float32, copy=False) * (1 / scales)
    return np.clip(np.rint(exact, out=exact), -limit, limit, out=exact).astype(np.int8)


def quantize_affine(
    values: np.ndarray, axes: tuple[int, ...], bits: int = 8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes, scales and zero points for `(codes - zero_points) * scales`.

    The smallest and the largest value map to the ends of [-128, 127], or of [-8, 7] for
    4 bits. Zero has an exact code. The error of an entry is at most half a scale.

    Raises:
        ModelError: If `values` contains NaN or infinity.

    Example:
        >>> codes, scales, zeros = quantize_affine(np.array([0.0, 1.0, 5.1]), (0,))
        >>> codes.tolist(), zeros.tolist()
        ([-128, -78, 127], [-128])
    """
    exact = finite(values).astype(np.float32, copy=False)
    low = exact.min(axis=axes, keepdims=True, initial=0.0)
    high = exact.max(axis=axes, keepdims=True, initial=0.0)
    scales, zeros = affine_scales_of(low, high, bits)
    return affine_codes_of(exact, scales, zeros, bits), scales, zeros


def affine_scales_of(
    low: np.ndarray, high: np.ndarray, bits: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 scales and int8 zero points of ranges that contain zero."""
    least, most = _ends(bits)
    scales = positive_scales((high - low) * np.float32(1 / (most - least)))
    zeros = np.clip(np.rint(least - low * (1 / scales)), least, most)
    return scales, zeros.astype(np.int8)


def affine_codes_of(
    values: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int = 8
) -> np.ndarray:
    """Return the nearest int8 codes of finite float32 values, with zero points."""
    codes = values * (1 / scales)
    np.rint(codes, out=codes)
    codes += zeros
    return np.clip(codes, *_ends(bits), out=codes).astype(np.int8)


_SHARES = np.arange(20, 11, -1, dtype=np.float32) / 20
"""Fractions of the largest entry to try as the end of the range, from 1 to 0.6."""


def quantize_closely(
    values: np.ndarray, axes: tuple[int, ...], bits: int = 8, *, symmetric: bool = True
) -> tuple[np.ndarray, ...]:
    """Return codes, scales and, if not symmetric, zero points of least squared error.

    Each scale is optimized separately. A few large entries are clipped to the last
    code.

    Source: Choukroun, Kravchik, Yang and Kisilev, "Low-bit Quantization of Neural
    Networks for Efficient Inference" (OMSE), 2019.

    Raises:
        ModelError: If `values` contains NaN or infinity.

    Example:
        >>> values = np.float32([[*range(-60, 61), 100]])
        >>> codes, scales = quantize_closely(values, (1,), bits=4)
        >>> bool(scales < 100 / 7)
        True
    """
    exact = finite(values).astype(np.float32, copy=False)
    low = exact.min(axis=axes, keepdims=True, initial=0.0)
    high = exact.max(axis=axes, keepdims=True, initial=0.0)
    largest = np.maximum(high, -low)
    best: list[np.ndarray] = []
    # Errors are in units of a scale, so that squares do not overflow.
    least, unit = np.float32(np.inf), scales_of(largest, bits)

    def keep_closer(*candidate: np.ndarray) -> None:
        nonlocal best, least
        error = np.square((dequantize(*candidate) - exact) / unit)
        error = error.sum(axis=axes, keepdims=True, dtype=np.float32)
        closer = error < least
        least = np.where(closer, error, least)
        pairs = zip(candidate, best or candidate, strict=True)
        best = [np.where(closer, new, old) for new, old in pairs]

    for share in _SHARES:
        if symmetric:
            scales = scales_of(largest * share, bits)
            keep_closer(codes_of(exact, scales, bits), scales)
        else:
            own = affine_scales_of(low * share, high * share, bits)
            keep_closer(affine_codes_of(exact, *own, bits), *own)
    if symmetric:  # the scale of the least squares for these codes
        codes = best[0].astype(np.float32)
        products = (exact / unit * codes).sum(axis=axes, keepdims=True)
        squares = np.square(codes).sum(axis=axes, keepdims=True)
        scales = positive_scales(unit * products / np.maximum(squares, 1))
        keep_closer(codes_of(exact, scales, bits), scales)
    return tuple(best)


def dequantize(
    codes: np.ndarray, scales: np.ndarray, zero_points: np.ndarray | None = None
) -> np.ndarray:
    """Return float32 weights from codes, scales and zero points."""
    exact = codes.astype(np.float32)
    if zero_points is not None:
        exact = exact - zero_points.astype(np.float32)
    return exact * scales


def pack_int4(codes: np.ndarray, axis: int) -> np.ndarray:
    """Pack two int4 codes per byte along `axis`, the first in the low bits.

    An odd number of codes is padded with a zero.

    Example:
        >>> pack_int4(np.array([1, -1, 3], np.int8), 0).tolist()
        [-15, 3]
    """
    pairs = np.moveaxis(codes, axis, 0)
    if len(pairs) % 2:
        pairs = np.concatenate([pairs, np.zeros_like(pairs[:1])])
    codes_in_bytes = (pairs[0::2] & 0x0F) | (pairs[1::2] << 4)
    return np.ascontiguousarray(np.moveaxis(codes_in_bytes, 0, axis))


def pack_int3(codes: np.ndarray, axis: int) -> np.ndarray:
    """Pack eight int3 codes per three bytes along `axis`, the first in the lowest bits.

    The codes are padded with zeros to a multiple of eight.

    Example:
        >>> pack_int3(np.array([1, -1], np.int8), 0).tolist()
        [57, 0, 0]
    """
    first_axis_codes = np.moveaxis(codes, axis, 0)
    fill = np.zeros((-len(first_axis_codes) % 8, *first_axis_codes.shape[1:]), np.int8)
    eights = np.concatenate([first_axis_codes, fill]).reshape(
        -1, 8, *first_axis_codes.shape[1:]
    )
    word = np.zeros_like(eights[:, 0], np.uint32)
    for place in range(8):
        word |= (eights[:, place] & 7).astype(np.uint32) << np.uint32(3 * place)
    thirds = [(word >> np.uint32(8 * n)).astype(np.uint8) for n in range(3)]
    codes_in_bytes = (
        np.stack(thirds, axis=1).view(np.int8).reshape(-1, *first_axis_codes.shape[1:])
    )
    return np.ascontiguousarray(np.moveaxis(codes_in_bytes, 0, axis))


def pack(codes: np.ndarray, axis: int, bits: int) -> np.ndarray:
    """Pack codes of 3, 4 or 8 bits."""
    if bits == 8:
        return codes
    return (pack_int4 if bits == 4 else pack_int3)(codes, axis)


def packed_length(length: int, bits: int) -> int:
    """Return the number of bytes of `length` packed codes, including padding.

    Example:
        >>> packed_length(5, 4), packed_length(9, 3)
        (3, 6)
    """
    group = {3: 8, 4: 2, 8: 1}[bits]
    return -(-length // group) * group * bits // 8


def finite(values: np.ndarray, name: str | None = None) -> np.ndarray:
    """Return `values` unchanged. `name` is used in the message.

    Raises:
        ModelError: If `values` contains NaN or infinity.
    """
    good = np.isfinite(values.astype(np.float32, copy=False))
    if not good.all():
        raise ModelError(
            "Quantization needs finite weights. Received: NaN or infinity in "
            f"{np.count_nonzero(~good)} of {values.size} entries"
            f"{'' if name is None else f' of {name!r}'}."
        )
    return values


def short_scales(scales: np.ndarray) -> np.ndarray:
    """Round float32 scales up to bfloat16 values. Returns float32.

    Rounding up ensures that no entry exceeds the last code.

    Example:
        >>> short_scales(np.float32([1.0, 1.001])).tolist()
        [1.0, 1.0078125]
    """
    bits = np.ascontiguousarray(scales, np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def _ends(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _limit(bits: int) -> int:
    return LIMIT >> (8 - bits)


def positive_scales(exact: np.ndarray) -> np.ndarray:
    """Return float32 scales: 1 for zero, and at least the smallest normal number."""
    scales = exact.astype(np.float32)
    scales[exact == 0.0] = 1.0
    return np.maximum(scales, np.finfo(np.float32).tiny)
