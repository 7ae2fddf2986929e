"""8-bit codes with one scale per block and finer steps for smaller numbers.

A code is linear in the fourth root of its value, so smaller values have smaller steps.
The step is 3 % of the block maximum for the largest value, and 0.1 % for a hundredth of
it. Adam needs only the square root of the second moment. Its code is linear in the
square root of that root, which is again the fourth root of the moment.

Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization"
(2022) use a piecewise linear code with a tree search. There, half the code is a tenth
of the value. Here, half the code is a sixteenth of the value, and two square roots
compute the code. The mean and the maximum error are smaller for values of every
magnitude.

Rounding to the nearest code would lose updates, because one step of a moving average
changes less than half a code. Random rounding would cost more than the rest of the
update. Instead, each position in a block is rounded with an offset that changes every
step. Over all steps, the offsets are uniform in (0, 1).
"""

import math
from collections.abc import Iterable
from typing import Any

from keras import ops

from kerasmem.extras.optimizers.slots import AddSlot
from kerasmem.types import Tensor, Variable

_SIGNED_TOP = 127  # largest signed code; stored with an offset of 128, as 1 to 255
_ZERO = 128
_ROOT_TOP = 256  # the largest root code, 255, decodes to 256
_TINY = 1e-30  # far below any scale, but with a finite inverse
_TURNS = 1024  # number of offsets; each position uses another one in every step
_GOLDEN = 633  # 633 / 1024 approximates the golden ratio


def encode_signed(values: Any, offsets: Any) -> tuple[Any, Any]:
    """Quantize signed values. Returns codes and one scale per block.

    Zero is exact. A non-finite entry only affects its own block.

    Returns:
        A uint8 tensor of the same shape and a float32 tensor of shape `(blocks, 1)`.
    """
    sizes = ops.abs(values)
    scales = ops.max(sizes, axis=-1, keepdims=True)
    places = ops.sqrt(ops.sqrt(sizes * _over(scales, _SIGNED_TOP**4)))
    # The offset keeps all codes positive, so the cast rounds down.
    codes = ops.sign(values) * places + (offsets + float(_ZERO))
    return ops.cast(codes, "uint8"), scales


def decode_signed(codes: Tensor, scales: Any) -> Any:
    """Dequantize the result of `encode_signed`."""
    places = ops.cast(codes, "float32") - float(_ZERO)
    squares = places * ops.abs(places)
    return squares * ops.abs(squares) * (scales * float(_SIGNED_TOP) ** -4)


def encode_root(roots: Any, offsets: Any) -> tuple[Any, Any]:
    """Quantize square roots >= 0. Returns codes and one scale per block.

    No code is zero: the smallest is 1 / 65536 of the block maximum. Adam divides by the
    root, so a zero would give an update of any size.

    Returns:
        A uint8 tensor of the same shape and a float32 tensor of shape `(blocks, 1)`.
    """
    scales = ops.max(roots, axis=-1, keepdims=True)
    places = ops.sqrt(roots * _over(scales, _ROOT_TOP**2))
    # Values are above -1. The cast rounds down, and negative values up to 0.
    return ops.cast(places + (offsets - 1.0), "uint8"), scales


def decode_root(codes: Tensor, scales: Any) -> Any:
    """Dequantize the result of `encode_root`."""
    places = ops.cast(codes, "float32") + 1.0
    return ops.square(places) * (scales * float(_ROOT_TOP) ** -2)


def rounding_offsets(step: Any, entries: int) -> Any:
    """Return the rounding offset of each position in a block for one step.

    Each position cycles through `_TURNS` evenly spaced offsets in golden ratio order,
    so any few consecutive offsets are well spread. Each position is one step ahead of
    the previous one.

    Returns:
        Float32 tensor of shape `(entries,)`, in (0, 1) with a margin for rounding
        errors.
    """
    turns = ops.arange(entries, dtype="int32")
    turns = turns + ops.cast(ops.mod(step, _TURNS), "int32")
    places = ops.mod(turns * _GOLDEN, _TURNS)
    return (ops.cast(places, "float32") + 0.5) / _TURNS


def _over(scales: Any, top: int) -> Any:
    return top / (scales + _TINY)


class FullMoments:
    """Float32 moments, for small variables."""

    def __init__(self, variable: Variable, add_slot: AddSlot) -> None:
        self._first = add_slot("momentum", variable.shape, "float32")
        self._second = add_slot("velocity", variable.shape, "float32")

    def arrange(self, gradient: Tensor) -> Any:
        """Return the gradient as float32."""
        return ops.cast(gradient, "float32")

    def restore(self, change: Any) -> Any:
        """Return the update unchanged."""
        return change

    def read(self) -> tuple[Any, Any]:
        """Return the first and the second moment."""
        return ops.convert_to_tensor(self._first), ops.convert_to_tensor(self._second)

    def slots(
        self,
        first: Any,
        second: Any,
        root: Any,  # noqa: ARG002
        step: Any,  # noqa: ARG002
    ) -> Iterable[tuple[Any, Any]]:
        """Return pairs of optimizer variable and new value."""
        return (self._first, first), (self._second, second)


class CodedMoments:
    """Moments with an 8-bit code per entry and a scale per block.

    The last block is padded with zeros.
    """

    def __init__(self, variable: Variable, add_slot: AddSlot, block_size: int) -> None:
        self._shape = tuple(variable.shape)
        self._size = math.prod(self._shape)
        blocks = -(-self._size // block_size)
        self._blocks = blocks, block_size
        self._first = add_slot("momentum_codes", self._blocks, "uint8")
        self._first_scales = add_slot("momentum_scales", (blocks, 1), "float32")
        self._second = add_slot("velocity_codes", self._blocks, "uint8")
        self._second_scales = add_slot("velocity_scales", (blocks, 1), "float32")

    def arrange(self, gradient: Tensor) -> Any:
        """Return the gradient in blocks."""
        gradient = ops.cast(gradient, "float32")
        missing = math.prod(self._blocks) - self._size
        if missing:
            gradient = ops.pad(ops.reshape(gradient, (-1,)), [(0, missing)])
        return ops.reshape(gradient, self._blocks)

    def restore(self, change: Any) -> Any:
        """Return an update in the shape of the variable."""
        if math.prod(self._blocks) > self._size:
            change = ops.reshape(change, (-1,))[: self._size]
        return ops.reshape(change, self._shape)

    def read(self) -> tuple[Any, Any]:
        """Return the dequantized first and second moment."""
        first = decode_signed(self._first, self._first_scales)
        root = decode_root(self._second, self._second_scales)
        return first, ops.square(root)

    def slots(
        self,
        first: Any,
        second: Any,  # noqa: ARG002
        root: Any,
        step: Any,
    ) -> Iterable[tuple[Any, Any]]:
        """Return pairs of optimizer variable and new code or scale."""
        offsets = rounding_offsets(step, self._blocks[1])
        first_codes, first_scales = encode_signed(first, offsets)
        root_codes, root_scales = encode_root(root, offsets)
        return (
            (self._first, first_codes),
            (self._first_scales, first_scales),
            (self._second, root_codes),
            (self._second_scales, root_scales),
        )
