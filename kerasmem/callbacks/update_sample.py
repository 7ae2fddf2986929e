"""A sample of the entries of variables, to see how far an update moves them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kerasmem import backends
from kerasmem.backends import GradientMeter

MOST_ENTRIES = 16_384
"""Of one variable; all entries of a smaller one are taken."""
LEAST_ENTRIES = 16_384
"""Of all variables together, before any is taken in part."""
FEWEST_ROWS = 16
"""Of a variable that is not taken as a whole, if it has that many."""


class UpdateSample:
    """Takes the same entries of some variables, time and again.

    All together they are no more than an eighth of what the largest variable has, or
    `LEAST_ENTRIES` if that is more: next to the gradients they take little memory.

    Args:
        variables: the variables.
        meter: what takes rows of them, and measures.

    Attributes:
        size: number of entries that are taken.
    """

    def __init__(self, variables: Sequence[Any], meter: GradientMeter) -> None:
        sizes = [math.prod(variable.shape) for variable in variables]
        budget = max([LEAST_ENTRIES, *(size // 8 for size in sizes)])
        limit = min(MOST_ENTRIES, _share(sizes, budget))
        self._variables = variables
        self._meter = meter
        self._parts = [spaced_part(variable.shape, limit) for variable in variables]
        taken = [
            size if part is None else part.size
            for size, part in zip(sizes, self._parts, strict=True)
        ]
        self.size = sum(taken)
        self._ends = list(accumulate(taken[:-1]))

    def parts(self) -> list[Any]:
        """Return of each variable what is sampled, of a small one all of it."""
        pairs = zip(self._variables, self._parts, strict=True)
        return [self._entries(variable.value, part) for variable, part in pairs]

    def join(self, parts: Sequence[Any]) -> Any:
        """Return a float32 copy of what `parts` returned, a vector of `size`."""
        ops = backends.current().ops
        entries = [ops.reshape(part, (-1,)) for part in parts]
        return ops.concatenate([ops.cast(each, "float32") for each in entries])

    def changes(self, before: Any, after: Any) -> Any:
        """Return two L2 norms per variable: of its change, and of itself before.

        Args:
            before: what `join` returned then.
            after: what it returned later.
        """
        ops = backends.current().ops
        squares = [
            self._meter.squared_norms(self._split(entries))
            for entries in (after - before, before)
        ]
        return ops.sqrt(ops.stack(squares, axis=1))

    def _split(self, entries: Any) -> list[Any]:
        ends = self._ends
        return backends.current().ops.split(entries, ends) if ends else [entries]

    def _entries(self, value: Any, part: "Part | None") -> Any:
        if part is None:
            return value
        matrix = backends.current().ops.reshape(value, (-1, value.shape[-1]))
        rows = self._meter.spaced_rows(matrix, part.rows, part.row_step)
        return rows if part.column_step == 1 else rows[:, :: part.column_step]


@dataclass(frozen=True)
class Part:
    """Some entries of a variable, whose last axis makes the columns of a matrix.

    Args:
        rows: number of rows that are taken.
        row_step: rows from one that is taken to the next.
        column_step: columns from one that is taken to the next.
        size: number of entries that are taken.
    """

    rows: int
    row_step: int
    column_step: int
    size: int


def spaced_part(shape: Sequence[int], limit: int) -> Part | None:
    """Return which entries to take, `limit` at most; None if those are all.

    Example:
        >>> spaced_part((1024, 1024), 16_384)
        Part(rows=16, row_step=64, column_step=1, size=16384)
        >>> spaced_part((3, 2), limit=6)
    """
    size = math.prod(shape)
    if size <= limit:
        return None
    # Whole rows, because they are quick to take, but not too few of them.
    height, width = size // shape[-1], shape[-1]
    fewest = min(height, FEWEST_ROWS, limit)
    column_step = -(-width // (limit // fewest))
    columns = -(-width // column_step)
    row_step = -(-height // (limit // columns))
    rows = -(-height // row_step)
    return Part(rows, row_step, column_step, rows * columns)


def _share(sizes: Sequence[int], budget: int) -> int:
    """Return the largest limit so that the sizes, limited, add up to the budget."""
    remaining = budget
    for index, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - index)
        if size > share:
            return max(share, 1)
        remaining -= size
    return budget
