"""Numbers in 8 bits and one scale per block, finer the smaller they are.

A code is linear in the fourth root of what it stands for, so the step from one code to
the next shrinks with the number: 3 % of the largest entry of the block next to this,
0.1 % of it next to a hundredth of it. Of the second moment Adam needs the square root,
whose own square root a code is linear in: again the fourth root of the moment.

Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization"
(2022) have a tree of linear pieces, in which a number shrinks tenfold where its code
halves, and search it. Here it shrinks sixteenfold, without pieces, and two square roots
find the code. Numbers of every decade err less, on average and at worst.

Rounding is not to the nearest code: what a moving average moves in a step is less than
half of the way to the next one, so it would stay where it is. Random numbers would cost
more than all the rest. Instead each place in a block is rounded up from an offset that
is another one in every step, and over the steps the offsets lie evenly between 0 and 1.
"""

from typing import Any

from keras import ops

from kerasmem.types import Tensor

_SIGNED_TOP = 127  # the largest signed code; it is kept 128 higher, from 1 to 255
_ZERO = 128
_ROOT_TOP = 256  # the largest code of a root is 255; it stands for 256
_TINY = 1e-30  # far below any scale, and its inverse is still finite
_TURNS = 1024  # offsets, of which each place takes another one in every step
_GOLDEN = 633  # over 1024 the golden ratio, near enough


def encode_signed(values: Any, offsets: Any) -> tuple[Any, Any]:
    """Return a code per entry and the scale of each block.

    Zero stays zero. An entry that is not finite spoils its block at most.

    Args:
        values: float32 of shape (blocks, entries).
        offsets: what `rounding_offsets` gave, or 0.5 to round to the nearest.

    Returns:
        uint8 of the same shape and float32 of shape (blocks, 1).
    """
    sizes = ops.abs(values)
    scales = ops.max(sizes, axis=-1, keepdims=True)
    places = ops.sqrt(ops.sqrt(sizes * _over(scales, _SIGNED_TOP**4)))
    # Above zero, so that cutting off the fraction rounds down.
    codes = ops.sign(values) * places + (offsets + float(_ZERO))
    return ops.cast(codes, "uint8"), scales


def decode_signed(codes: Tensor, scales: Any) -> Any:
    """Return what `encode_signed` was given, up to one step of the code."""
    places = ops.cast(codes, "float32") - float(_ZERO)
    squares = places * ops.abs(places)
    return squares * ops.abs(squares) * (scales * float(_SIGNED_TOP) ** -4)


def encode_root(roots: Any, offsets: Any) -> tuple[Any, Any]:
    """Return a code per entry and the scale of each block, for roots from zero up.

    No code stands for zero: the least is 1 / 65536 of the block's largest entry. A root
    divides, and one that was rounded to zero would make an update of any size.

    Args:
        roots: float32 of shape (blocks, entries), at least 0.
        offsets: what `rounding_offsets` gave, or 0.5 to round to the nearest.

    Returns:
        uint8 of the same shape and float32 of shape (blocks, 1).
    """
    scales = ops.max(roots, axis=-1, keepdims=True)
    places = ops.sqrt(roots * _over(scales, _ROOT_TOP**2))
    # Above -1, so that cutting off the fraction rounds down, and what is below 0 up.
    return ops.cast(places + (offsets - 1.0), "uint8"), scales


def decode_root(codes: Tensor, scales: Any) -> Any:
    """Return what `encode_root` was given, up to one step of the code."""
    places = ops.cast(codes, "float32") + 1.0
    return ops.square(places) * (scales * float(_ROOT_TOP) ** -2)


def rounding_offsets(step: Any, entries: int) -> Any:
    """Return the offset of each place in a block, in one step.

    A place goes through `_TURNS` offsets, evenly spaced, in the order of the golden
    ratio: any few in a row are well spread. Each is a step ahead of the place before.

    Args:
        step: number of the update, an integer from 0.
        entries: of a block.

    Returns:
        float32 of shape (entries,), inside of (0, 1) by a margin in which the rounding
        errors of encoding what was decoded have room.
    """
    turns = ops.arange(entries, dtype="int32")
    turns = turns + ops.cast(ops.mod(step, _TURNS), "int32")
    places = ops.mod(turns * _GOLDEN, _TURNS)
    return (ops.cast(places, "float32") + 0.5) / _TURNS


def _over(scales: Any, top: int) -> Any:
    return top / (scales + _TINY)
