"""What is measured of the gradients of one training step."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends import GradientMeter
from kerasmem.callbacks import gradient_sums as sums
from kerasmem.callbacks.if_due import if_due

_FIGURES = 3  # what `GradientMeter.statistics` tells of a gradient


class MeasuredStep:
    """Measures the gradients of one step.

    In a compiled step what is measured only if it is due stands in branches. A branch
    waits for all that it reads, so there are several, each of few gradients: else all
    of them would have to be kept until the last one is known.

    Args:
        gradients: the gradients.
        meter: what measures.
        groups: indices of the gradients that one branch reads.
    """

    def __init__(
        self,
        gradients: Sequence[Any],
        meter: GradientMeter,
        groups: Sequence[range],
    ) -> None:
        self._meter = meter
        self._gradients = [[gradients[i] for i in group] for group in groups]
        self._squares = [meter.squared_norms(group) for group in self._gradients]
        self._figures: list[Any] = []

    def squared_norms(self) -> Any:
        """Return the square of the L2 norm of each gradient, a vector."""
        return backends.current().ops.concatenate(self._squares)

    def look(self, is_due: Any) -> None:
        """Measure the rest too, if it is due; call it before the update."""
        for gradients, squares in zip(self._gradients, self._squares, strict=True):
            measure = partial(self._meter.statistics, gradients, squares)
            self._figures.append(
                if_due(is_due, measure, partial(_zeros, is_due, len(gradients)))
            )

    def statistics(self) -> Any:
        """Return the rows that `gradient_sums` wants, of a step that was due."""
        figures = backends.current().ops.concatenate(self._figures)
        return sums.statistics_of(self.squared_norms(), figures)


def _zeros(is_due: Any, rows: int) -> Any:
    # Not as a constant: TensorFlow would keep it in memory for good.
    zero = keras.ops.cast(is_due, "float32")
    return keras.ops.broadcast_to(zero, (rows, _FIGURES))


def neighbors(variables: Sequence[Any]) -> list[range]:
    """Return variables in groups that are little larger than the largest of all."""
    sizes = [math.prod(variable.shape) for variable in variables]
    limit = 1.25 * max(sizes)  # room for a bias beside each of many equal kernels
    groups: list[range] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            groups.append(range(start, index))
            start, total = index, 0
        total += size
    return [*groups, range(start, len(sizes))]
