"""The running figures of an epoch, and how a step adds to them.

Two small float32 arrays ride in the step. One is a vector with figures of the whole
gradient and whether the latest update was sampled, then two of each variable: the
number of the first update, from 1, whose gradient was not finite, and the bytes of the
largest sparse gradient. The other has a row of figures per variable, of sampled steps
only. How far an update moves a large variable is seen by a sample of its entries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from kerasmem import backends
from kerasmem.records import VariableGradient

NORM, NONFINITE, STEPS, LARGEST, FIRST, LAST, SAMPLED, HEAD = range(8)
_SUMS = LARGEST  # what stands before is a sum over the steps

_FIGURES = ("norm", "entry", "nonzero", "nonfinite", "finite", "steps")
_RATIOS = ("ratio", "ratios")
_LARGEST = ("largest_norm", "largest_entry")
_COLUMNS = (*_FIGURES, *_RATIOS, *_LARGEST, "last_norm")
STATISTICS = len(_FIGURES)
"""Number of figures per variable that are known before the update."""


def no_steps(variables: int, *, sampled: float) -> np.ndarray:
    """Return the vector of an epoch that begins.

    Args:
        variables: number of variables.
        sampled: 1.0 if the sampled entries are those of the variables as they are.
    """
    vector = np.zeros(HEAD + 2 * variables, "float32")
    vector[SAMPLED] = sampled
    return vector


def no_rows(variables: int) -> np.ndarray:
    """Return the rows of an epoch that begins."""
    return np.zeros((variables, len(_COLUMNS)), "float32")


def with_step(vector: Any, squared_norms: Any, sparse_bytes: Any, sampled: Any) -> Any:
    """Return the vector with one more update.

    Args:
        vector: as it was.
        squared_norms: the square of the L2 norm of each variable's gradient.
        sparse_bytes: bytes of each gradient that is sparse, else 0; None if none is.
        sampled: 1.0 if the update is sampled, else 0.0.
    """
    ops = backends.current().ops
    ends = np.cumsum([_SUMS, 1, 1, 2, squared_norms.shape[0]])
    sums, largest, first_norm, _, first, most = ops.split(vector, ends.tolist())
    norm = ops.reshape(ops.sqrt(ops.sum(squared_norms)), (1,))
    is_finite = ops.isfinite(norm)
    finite_norm, one = ops.where(is_finite, norm, 0.0), ops.ones_like(norm)
    nonfinite = one - ops.cast(is_finite, "float32")
    step_sums = ops.concatenate([finite_norm, nonfinite, one])
    is_first = ~ops.isfinite(squared_norms) & (first == 0.0)
    return ops.concatenate(
        [
            sums + step_sums,
            ops.maximum(largest, finite_norm),
            ops.where(sums[STEPS] == 0.0, norm, first_norm),
            norm,
            one * sampled,
            ops.where(is_first, sums[STEPS] + 1.0, first),
            most if sparse_bytes is None else ops.maximum(most, sparse_bytes),
        ]
    )


def statistics_of(squared_norms: Any, figures: Any) -> Any:
    """Return what a sampled step tells of some gradients, `STATISTICS` figures each.

    Args:
        squared_norms: the square of the L2 norm of each.
        figures: what `gradient_statistics` returned.
    """
    ops = backends.current().ops
    squares = ops.reshape(squared_norms, (-1, 1))
    is_finite = ops.isfinite(squares)
    values = ops.concatenate([ops.sqrt(squares), figures[:, :1]], axis=1)
    finite_values = ops.where(is_finite, values, 0.0)
    counts = [ops.cast(is_finite, "float32"), ops.ones_like(squares)]
    return ops.concatenate([finite_values, figures[:, 1:], *counts], axis=1)


def with_statistics(rows: Any, statistics: Any) -> Any:
    """Return the rows with those of one more sampled step.

    Args:
        rows: as they were.
        statistics: a row per variable of what `statistics_of` returned; zeros if there
            was no gradient.
    """
    ops = backends.current().ops
    ends = np.cumsum([STATISTICS, len(_RATIOS), len(_LARGEST)]).tolist()
    sums, ratios, largest, last = ops.split(rows, ends, axis=1)
    is_finite, is_seen = statistics[:, -2:-1] != 0.0, statistics[:, -1:] != 0.0
    newest = ops.where(is_finite, statistics[:, :1], math.nan)
    return ops.concatenate(
        [
            sums + statistics,
            ratios,
            ops.maximum(largest, statistics[:, : len(_LARGEST)]),
            ops.where(is_seen, newest, last),
        ],
        axis=1,
    )


def with_changes(rows: Any, changes: Any) -> Any:
    """Return the rows with how far one update moved the variables.

    Args:
        rows: as they were.
        changes: per variable the L2 norm of its change, and that of itself before.
            Where the latter is 0, or one is not finite, no ratio is counted.
    """
    ops = backends.current().ops
    ends = [STATISTICS, STATISTICS + len(_RATIOS)]
    before, ratios, after = ops.split(rows, ends, axis=1)
    ratio = changes[:, :1] / changes[:, 1:]
    is_known = ops.isfinite(ratio)
    finite_ratio, one = ops.where(is_known, ratio, 0.0), ops.cast(is_known, "float32")
    more = ratios + ops.concatenate([finite_ratio, one], axis=1)
    return ops.concatenate([before, more, after], axis=1)


def variable_record(
    path: str, size: int, gradient_bytes: int, row: Sequence[float]
) -> VariableGradient | None:
    """Return the record of one variable, None if it was never sampled.

    Args:
        path: its path.
        size: number of its entries.
        gradient_bytes: bytes of its gradient.
        row: its figures.
    """
    figures = dict(zip(_COLUMNS, row, strict=True))
    steps, finite, ratios = (figures[name] for name in ("steps", "finite", "ratios"))
    if not steps:
        return None
    zero_fraction = 1.0 - figures["nonzero"] / steps / size
    return VariableGradient(
        path=path,
        steps=round(steps),
        norm=figures["norm"] / finite if finite else math.nan,
        max_abs=figures["largest_entry"],
        zero_fraction=min(1.0, max(0.0, zero_fraction)),  # rounding goes beyond
        nonfinite=round(figures["nonfinite"]),
        norm_max=figures["largest_norm"] if finite else math.nan,
        norm_last=figures["last_norm"],
        update_ratio=figures["ratio"] / ratios if ratios else None,
        gradient_bytes=gradient_bytes,
    )


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

    Attributes:
        size: number of entries that are taken.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        sizes = [math.prod(variable.shape) for variable in variables]
        budget = max([LEAST_ENTRIES, *(size // 8 for size in sizes)])
        limit = min(MOST_ENTRIES, _share(sizes, budget))
        self._variables = variables
        self._parts = [spaced_part(variable.shape, limit) for variable in variables]
        part_sizes = [
            size if part is None else part.size
            for size, part in zip(sizes, self._parts, strict=True)
        ]
        self.size = sum(part_sizes)
        self._ends = list(accumulate(part_sizes[:-1]))

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
        backend = backends.current()
        squares = [
            backend.squared_norms(self._split(entries))
            for entries in (after - before, before)
        ]
        return backend.ops.sqrt(backend.ops.stack(squares, axis=1))

    def _split(self, entries: Any) -> list[Any]:
        ends = self._ends
        return backends.current().ops.split(entries, ends) if ends else [entries]

    def _entries(self, value: Any, part: "MatrixPart | None") -> Any:
        if part is None:
            return value
        ops = backends.current().ops
        matrix = ops.reshape(value, (-1, value.shape[-1]))
        rows = ops.take(matrix, np.arange(part.rows) * part.row_step, axis=0)
        return rows if part.column_step == 1 else rows[:, :: part.column_step]


@dataclass(frozen=True)
class MatrixPart:
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


def spaced_part(shape: Sequence[int], limit: int) -> MatrixPart | None:
    """Return which entries to take, `limit` at most; None if those are all.

    Example:
        >>> spaced_part((1024, 1024), 16_384)
        MatrixPart(rows=16, row_step=64, column_step=1, size=16384)
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
    return MatrixPart(rows, row_step, column_step, rows * columns)


def _share(sizes: Sequence[int], budget: int) -> int:
    remaining = budget
    for index, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - index)
        if size > share:
            return max(share, 1)
        remaining -= size
    return budget
