"""Unpacking of codes from bytes, on tensors. The module `math` packs them."""

from typing import Any

import keras


def unpack_half(packed: Any, half: int) -> Any:
    """Return the int4 codes at even (`half=0`) or odd (`half=1`) positions as int8."""
    four = keras.ops.cast(4, "int8")
    codes = packed if half else keras.ops.left_shift(packed, four)
    return keras.ops.right_shift(codes, four)


def unpack_int4(packed: Any, axis: int, length: int) -> Any:
    """Unpack `length` int4 codes along `axis`. Inverse of `pack_int4`."""
    ops = keras.ops
    both = ops.stack([unpack_half(packed, n) for n in range(2)], axis=axis + 1)
    # The batch axis of looked-up rows may be unknown.
    shape = ops.shape(packed)
    codes = ops.reshape(both, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
    if length == 2 * shape[axis]:
        return codes
    return codes[(*(slice(None) for _ in shape[:axis]), slice(length))]


def unpack_int3(packed: Any, axis: int, length: int) -> Any:
    """Unpack `length` int3 codes along `axis`. Inverse of `pack_int3`."""
    ops = keras.ops
    shape = ops.shape(packed)
    before, behind, count = shape[:axis], shape[axis + 1 :], shape[axis] // 3
    thirds = ops.reshape(packed, (*before, count, 3, *behind))
    thirds = ops.bitwise_and(ops.cast(thirds, "int32"), _int32(255))
    first, second, third = ops.unstack(thirds, 3, axis=axis + 1)
    word = ops.bitwise_or(first, ops.left_shift(second, _int32(8)))
    word = ops.bitwise_or(word, ops.left_shift(third, _int32(16)))
    codes = [
        # The arithmetic right shift extends the sign bit of the code.
        ops.right_shift(ops.left_shift(word, _int32(29 - 3 * n)), _int32(29))
        for n in range(8)
    ]
    unpacked_codes = ops.cast(ops.stack(codes, axis=axis + 1), "int8")
    unpacked_codes = ops.reshape(unpacked_codes, (*before, 8 * count, *behind))
    if length == 8 * count:
        return unpacked_codes
    return unpacked_codes[(*(slice(None) for _ in before), slice(length))]


def _int32(number: int) -> Any:
    return keras.ops.cast(number, "int32")
