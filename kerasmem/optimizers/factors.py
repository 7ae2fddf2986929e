"""The second moment of one variable, as Adafactor keeps it."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras import ops

_Slots = Iterable[tuple[Any, Any]]


class Factored:
    """The means of the rows and of the columns of a variable's squared gradient.

    Args:
        variable: of the model, of two axes or more.
        add_slot: makes a variable of the optimizer from a name and a shape.
        axes: `"auto"` or `"last"`, see `factored_shape`.
    """

    def __init__(self, variable: Any, add_slot: Callable[..., Any], axes: str) -> None:
        self._shape = tuple(variable.shape)
        self._factored = factored_shape(self._shape, axes)
        *before, rows, columns = self._factored
        self._rows = add_slot("row", (*before, rows))
        self._columns = add_slot("column", (*before, columns))

    def updated(self, gradient: Any, kept: Any, floor: float) -> tuple[Any, _Slots]:
        """Return the gradient over the root of its second moment, and the new slots.

        Args:
            gradient: float32, of the variable's shape.
            kept: share of the second moment so far that is kept.
            floor: added to the square of the gradient.
        """
        gradient = ops.reshape(gradient, self._factored)
        squares = ops.square(gradient) + floor
        rows, columns = (
            kept * slot + (1 - kept) * ops.mean(squares, axis=axis)
            for slot, axis in ((self._rows, -1), (self._columns, -2))
        )
        share = rows / ops.mean(rows, axis=-1, keepdims=True)
        second = ops.expand_dims(share, -1) * ops.expand_dims(columns, -2)
        update = ops.reshape(gradient / ops.sqrt(second), self._shape)
        return update, ((self._rows, rows), (self._columns, columns))


class Unfactored:
    """The second moment of a variable of less than two axes, as it is.

    Args:
        variable: of the model.
        add_slot: makes a variable of the optimizer from a name and a shape.
    """

    def __init__(self, variable: Any, add_slot: Callable[..., Any]) -> None:
        self._second = add_slot("velocity", tuple(variable.shape))

    def updated(self, gradient: Any, kept: Any, floor: float) -> tuple[Any, _Slots]:
        """Return the gradient over the root of its second moment, and the new slot."""
        second = kept * self._second + (1 - kept) * (ops.square(gradient) + floor)
        return gradient / ops.sqrt(second), ((self._second, second),)


def factored_shape(shape: Sequence[int], axes: str) -> tuple[int, ...]:
    """Return a shape whose last two axes are factored, of as many entries as `shape`.

    Args:
        shape: of a variable, two axes or more.
        axes: `"last"` for the shape itself; `"auto"` for the shape itself where its
            last two axes are the two largest, else for a matrix of some first axes by
            the others, as many as make rows and columns the fewest.

    Example:
        >>> factored_shape((512, 8, 64), "auto"), factored_shape((3, 3, 64, 32), "auto")
        ((512, 512), (3, 3, 64, 32))
    """
    shape = tuple(shape)
    if axes == "last" or sorted(shape[-2:]) == sorted(shape)[-2:]:
        return shape
    matrices = [
        (math.prod(shape[:split]), math.prod(shape[split:]))
        for split in range(1, len(shape))
    ]
    return min(matrices, key=sum)
