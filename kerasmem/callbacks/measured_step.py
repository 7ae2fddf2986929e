"""What is measured of one training step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from kerasmem.backends import GradientMeter
from kerasmem.callbacks import gradient_sums as sums
from kerasmem.callbacks.update_sample import UpdateSample


class Plan:
    """What stays the same from step to step.

    In a compiled step what is measured of a step that is due stands in branches. A
    branch waits for all that it reads, so there are several, each of few gradients:
    else all of them would have to be kept until the last one is known.

    Args:
        variables: those that get an update.
        meter: what measures.
        in_one: whether there are no branches, and all can be measured at once.
    """

    def __init__(
        self, variables: Sequence[Any], meter: GradientMeter, *, in_one: bool
    ) -> None:
        sizes = [math.prod(variable.shape) for variable in variables]
        self.meter = meter
        self.sample = UpdateSample(variables, meter)
        self.groups = [range(len(sizes))] if in_one else _groups(sizes)


class MeasuredStep:
    """Measures the gradients of one step, and how far the update moves the variables.

    Args:
        gradients: the gradients, in the order of the plan's variables.
        plan: how to go about it.
    """

    def __init__(self, gradients: Sequence[Any], plan: Plan) -> None:
        self._meter = meter = plan.meter
        self._sample = plan.sample
        self._groups = plan.groups
        self._gradients = [[gradients[i] for i in group] for group in plan.groups]
        self._squares = [meter.squared_norms(group) for group in self._gradients]
        self._before: list[Any] = []

    def squared_norms(self) -> Any:
        """Return the square of the L2 norm of each gradient, a vector."""
        return ops.concatenate(self._squares)

    def statistics(self, is_due: Any) -> Any:
        """Return the rows that `gradient_sums` wants; call it before the update.

        Args:
            is_due: True, or a boolean tensor; where it is False all rows are zeros.
        """
        rows = []
        for place, group in enumerate(self._groups):
            shape = (len(group), sums.STATISTICS)
            of_group = self._gradients[place], self._squares[place]
            rows.append(_if_due(is_due, shape, self._figures, *of_group))
            self._before.append(self._entries(is_due, group))
        return ops.concatenate(rows, axis=0)

    def changes(self, is_due: Any) -> Any:
        """Return two L2 norms per variable; call it after the update.

        They are those of the change and of the variable before, of sampled entries.
        """
        pairs = []
        for group, before in zip(self._groups, self._before, strict=True):
            after = self._entries(is_due, group)
            shape = (len(group), 2)
            pairs.append(_if_due(is_due, shape, self._change, group, before, after))
        return ops.concatenate(pairs, axis=0)

    def _entries(self, is_due: Any, group: range) -> Any:
        shape = (self._sample.size(group),)
        return _if_due(is_due, shape, self._sample.take, group)

    def _figures(self, gradients: Sequence[Any], squared_norms: Any) -> Any:
        figures = self._meter.statistics(gradients, squared_norms)
        return sums.statistics_of(squared_norms, figures)

    def _change(self, group: range, before: Any, after: Any) -> Any:
        squares = [
            self._meter.squared_norms(self._sample.split(group, entries))
            for entries in (after - before, before)
        ]
        return ops.sqrt(ops.stack(squares, axis=1))


def _if_due(
    is_due: Any, shape: tuple[int, ...], compute: Callable[..., Any], *arguments: Any
) -> Any:
    """Return what `compute` returns, or zeros of that shape where it is not due."""
    if is_due is True:
        return compute(*arguments)
    return ops.cond(
        is_due, lambda: compute(*arguments), lambda: ops.zeros(shape, "float32")
    )


def _groups(sizes: Sequence[int]) -> list[range]:
    """Return neighbors together that are little larger than the largest of all."""
    limit = 1.25 * max(sizes)  # room for a bias beside each of many equal kernels
    groups: list[range] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            groups.append(range(start, index))
            start, total = index, 0
        total += size
    return [*groups, range(start, len(sizes))]
