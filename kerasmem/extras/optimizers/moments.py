"""The two moments of a variable in optimizer slots.

`FullMoments` and `CodedMoments` have the same methods. Each has its own layout for
gradient, moments and update, in float32.
"""

import math
from collections.abc import Iterable
from typing import Any

from keras import ops

from kerasmem.extras.optimizers import codes
from kerasmem.extras.optimizers.slots import AddSlot
from kerasmem.types import Tensor, Variable


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
        first = codes.decode_signed(self._first, self._first_scales)
        root = codes.decode_root(self._second, self._second_scales)
        return first, ops.square(root)

    def slots(
        self,
        first: Any,
        second: Any,  # noqa: ARG002
        root: Any,
        step: Any,
    ) -> Iterable[tuple[Any, Any]]:
        """Return pairs of optimizer variable and new code or scale."""
        offsets = codes.rounding_offsets(step, self._blocks[1])
        first_codes, first_scales = codes.encode_signed(first, offsets)
        root_codes, root_scales = codes.encode_root(root, offsets)
        return (
            (self._first, first_codes),
            (self._first_scales, first_scales),
            (self._second, root_codes),
            (self._second_scales, root_scales),
        )
