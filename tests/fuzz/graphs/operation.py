"""One kind of step of a random graph."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_ENTRIES = 640
"""Of one sample of a tensor: larger ones are not made."""


@dataclass(frozen=True)
class Operation:
    """A kind of step.

    Args:
        make: takes the drawing and the tensors, returns a tensor; or a layer, which is
            then called on the tensors, and may be called on others later.
        ranks: axes of the first tensor beside the batch that it takes.
        takes: number of tensors.
        alike: whether all tensors have one shape.
    """

    make: Callable[..., Any]
    ranks: tuple[int, ...] = (1, 2, 3, 4)
    takes: int = 1
    alike: bool = True


class Draw(random.Random):
    """The choices of one step, from a number alone."""

    def size(self, least: int, most: int) -> int:
        """Return a whole number, both ends included."""
        return self.randint(least, most)

    def flag(self, share: float = 0.5) -> bool:
        """Return True with a probability."""
        return self.random() < share

    def axis(self, x: Any, *, batch: bool = False) -> int:
        """Return an axis of a tensor, counted from the front or the back."""
        axis = self.randint(0 if batch else 1, len(x.shape) - 1)
        return axis - len(x.shape) if self.flag() else axis
