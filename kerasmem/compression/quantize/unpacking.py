"""Codes of bytes that hold several, as tensors; `math` packs them."""

from typing import Any

import keras


def unpack_half(packed: Any, half: int) -> Any:
    """Return every second int8 code of bytes that contain two each.

    Args:
        packed: Tensor of int8.
        half: 0 for the codes at even positions, 1 for those at odd positions.
    """
    four = keras.ops.cast(4, "int8")
    codes = packed if half else keras.ops.left_shift(packed, four)
    return keras.ops.right_shift(codes, four)


def unpack_int4(packed: Any, axis: int, length: int) -> Any:
    """Return int8 codes of bytes that hold two each; the inverse of `pack_int4`.

    Args:
        packed: an int8 tensor.
        axis: the axis along which neighbors share a byte.
        length: number of codes along it.
    """
    ops = keras.ops
    both = ops.stack([unpack_half(packed, n) for n in range(2)], axis=axis + 1)
    # What it looks up may be as open as a batch is.
    shape = ops.shape(packed)
    codes = ops.reshape(both, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
    if length == 2 * shape[axis]:
        return codes
    return codes[(*(slice(None) for _ in shape[:axis]), slice(length))]


def unpack_int3(packed: Any, axis: int, length: int) -> Any:
    """Return int8 codes of which three bytes hold eight; the inverse of `pack_int3`.

    Args:
        packed: an int8 tensor.
        axis: the axis along which neighbors share bytes.
        length: number of codes along it.
    """
    ops = keras.ops
    shape = ops.shape(packed)
    before, behind, count = shape[:axis], shape[axis + 1 :], shape[axis] // 3
    thirds = ops.reshape(packed, (*before, count, 3, *behind))
    thirds = ops.bitwise_and(ops.cast(thirds, "int32"), _int32(255))
    first, second, third = ops.unstack(thirds, 3, axis=axis + 1)
    word = ops.bitwise_or(first, ops.left_shift(second, _int32(8)))
    word = ops.bitwise_or(word, ops.left_shift(third, _int32(16)))
    codes = [
        # The sign, the third bit of a code, goes to the top and comes down again.
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
