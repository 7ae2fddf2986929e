"""The two moments of one variable, as an optimizer keeps them.

`FullMoments` and `CodedMoments` have the same methods. Both arrange the gradient, the
moments and the change in one way of their own, as float32.
"""

import math
from collections.abc import Iterable
from typing import Any

from keras import ops

from kerasmem.extras.optimizers import codes
from kerasmem.extras.optimizers.slots import AddSlot
from kerasmem.types import Tensor, Variable


class FullMoments:
    """Both moments as they are, for a variable too small to gain from codes.

    Args:
        variable: of the model.
        add_slot: makes a variable of the optimizer.
    """

    def __init__(self, variable: Variable, add_slot: AddSlot) -> None:
        self._first = add_slot("momentum", variable.shape, "float32")
        self._second = add_slot("velocity", variable.shape, "float32")

    def arrange(self, gradient: Tensor) -> Any:
        """Return the gradient."""
        return ops.cast(gradient, "float32")

    def restore(self, change: Any) -> Any:
        """Return the change."""
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
        """Return the optimizer's variables and the values that keep new moments.

        Args:
            first: the new first moment.
            second: the new second moment.
            root: its square root.
            step: number of the update, an integer from 0.
        """
        return (self._first, first), (self._second, second)


class CodedMoments:
    """Both moments in 8 bits an entry and a scale a block.

    Args:
        variable: of the model.
        add_slot: makes a variable of the optimizer.
        block_size: entries of a block; the last one is filled up with zeros.
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
        """Return a change that is in blocks in the variable's shape."""
        if math.prod(self._blocks) > self._size:
            change = ops.reshape(change, (-1,))[: self._size]
        return ops.reshape(change, self._shape)

    def read(self) -> tuple[Any, Any]:
        """Return the first and the second moment."""
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
        """Return the optimizer's variables and the codes and scales of new moments."""
        offsets = codes.rounding_offsets(step, self._blocks[1])
        first_codes, first_scales = codes.encode_signed(first, offsets)
        root_codes, root_scales = codes.encode_root(root, offsets)
        return (
            (self._first, first_codes),
            (self._first_scales, first_scales),
            (self._second, root_codes),
            (self._second_scales, root_scales),
        )
