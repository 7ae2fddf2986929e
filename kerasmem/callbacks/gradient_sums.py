"""Running gradient statistics of an epoch, updated in each step.

There are two small float32 arrays. The vector contains statistics of the whole gradient
and whether the latest update was sampled. It also has an entry per variable: the
1-based index of the first update with a nonfinite gradient. The matrix has a row of
statistics per variable, from sampled steps only. The size of an update is estimated
from a sample of entries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem import backends
from kerasmem.graph.values import to_numpy
from kerasmem.records import VariableGradient

NORM, NONFINITE, STEPS, LARGEST, FIRST, LAST, SAMPLED, HEAD = range(8)
_SUMS = LARGEST  # the entries before this index are sums over steps

_FIGURES = ("norm", "entry", "nonzero", "nonfinite", "finite", "steps")
_RATIOS = ("ratio", "ratios")
_LARGEST = ("largest_norm", "largest_entry")
_COLUMNS = (*_FIGURES, *_RATIOS, *_LARGEST, "last_norm")
STATISTICS = len(_FIGURES)
"""Number of statistics per variable that are known before the update."""


def no_steps(variables: int, *, sampled: float) -> np.ndarray:
    """Return the vector for the start of an epoch.

    `sampled` is 1.0 if the sampled entries match the current variables, else 0.0.
    """
    vector = np.zeros(HEAD + variables, "float32")
    vector[SAMPLED] = sampled
    return vector


def no_rows(variables: int) -> np.ndarray:
    """Return the rows for the start of an epoch."""
    return np.zeros((variables, len(_COLUMNS)), "float32")


def with_step(vector: Any, squared_norms: Any, sampled: Any) -> Any:
    """Return the vector after one more update.

    `squared_norms` has a value per gradient. `sampled` is 1.0 or 0.0.
    """
    ops = backends.current().ops
    ends = np.cumsum([_SUMS, 1, 1, 2])
    sums, largest, first_norm, _, first = ops.split(vector, ends.tolist())
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
        ]
    )


def statistics_of(squared_norms: Any, figures: Any) -> Any:
    """Return `STATISTICS` values per gradient of a sampled step."""
    ops = backends.current().ops
    squares = ops.reshape(squared_norms, (-1, 1))
    is_finite = ops.isfinite(squares)
    values = ops.concatenate([ops.sqrt(squares), figures[:, :1]], axis=1)
    finite_values = ops.where(is_finite, values, 0.0)
    counts = [ops.cast(is_finite, "float32"), ops.ones_like(squares)]
    return ops.concatenate([finite_values, figures[:, 1:], *counts], axis=1)


def with_statistics(rows: Any, statistics: Any) -> Any:
    """Return the rows after a sampled step with the output of `statistics_of`."""
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
    """Return the rows with the size of one update added.

    `changes` has two L2 norms per variable: of the change and of the value before. A
    ratio that is not finite is not counted.
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
    path: str, size: int, row: Sequence[float]
) -> VariableGradient | None:
    """Return the record of one variable, or None if it was never sampled."""
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
        zero_fraction=min(1.0, max(0.0, zero_fraction)),  # corrects rounding errors
        nonfinite=round(figures["nonfinite"]),
        norm_max=figures["largest_norm"] if finite else math.nan,
        norm_last=figures["last_norm"],
        update_ratio=figures["ratio"] / ratios if ratios else None,
    )


MOST_ENTRIES = 16_384
"""Maximum number of sampled entries per variable. Smaller variables are used whole."""
LEAST_ENTRIES = 16_384
"""Minimum number of entries of all variables before any variable is sampled."""
FEWEST_ROWS = 16
"""Minimum number of rows in the sample of a variable, if it has that many."""


class UpdateSample:
    """Reads a fixed sample of `size` entries of the variables.

    The sample has at most an eighth of the entries of the largest variable, or
    `LEAST_ENTRIES` if that is more. Its memory is small compared with the gradients.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        sizes = [math.prod(variable.shape) for variable in variables]
        budget = max([LEAST_ENTRIES, *(size // 8 for size in sizes)])
        limit = min(MOST_ENTRIES, _share(sizes, budget))
        self._variables = variables
        self._parts = [spaced_part(variable.shape, limit) for variable in variables]
        self._sizes = [
            size if part is None else part.size
            for size, part in zip(sizes, self._parts, strict=True)
        ]
        self.size = sum(self._sizes)

    def read(self) -> Any:
        """Return the sampled entries as one float32 vector of length `size`."""
        ops = backends.current().ops
        pairs = zip(self._variables, self._parts, strict=True)
        parts = [self._entries(variable.value, part) for variable, part in pairs]
        entries = [ops.reshape(part, (-1,)) for part in parts]
        return ops.concatenate([ops.cast(each, "float32") for each in entries])

    def current(self) -> np.ndarray:
        """Return the output of `read` now, without operations for XLA to compile."""
        pairs = zip(self._variables, self._parts, strict=True)
        parts = [_every(to_numpy(variable), part) for variable, part in pairs]
        return np.concatenate([part.astype("float32").ravel() for part in parts])

    def changes(self, before: Any, after: Any) -> Any:
        """Return two L2 norms per variable: of the change and of the value before."""
        backend = backends.current()
        squares = [
            backend.segment_squares(entries, self._sizes)
            for entries in (after - before, before)
        ]
        return backend.ops.sqrt(backend.ops.stack(squares, axis=1))

    def _entries(self, value: Any, part: "MatrixPart | None") -> Any:
        if part is None:
            return value
        ops = backends.current().ops
        matrix = ops.reshape(value, (-1, value.shape[-1]))
        rows = ops.take(matrix, np.arange(part.rows) * part.row_step, axis=0)
        return rows if part.column_step == 1 else rows[:, :: part.column_step]


@dataclass(frozen=True)
class MatrixPart:
    """Every n-th row and column of a variable, with its last axis as columns."""

    rows: int
    row_step: int
    column_step: int
    size: int


def spaced_part(shape: Sequence[int], limit: int) -> MatrixPart | None:
    """Return the sample of at most `limit` entries, or None for all entries.

    Example:
        >>> spaced_part((1024, 1024), 16_384)
        MatrixPart(rows=16, row_step=64, column_step=1, size=16384)
        >>> spaced_part((3, 2), limit=6)
    """
    size = math.prod(shape)
    if size <= limit:
        return None
    # Whole rows are fast to gather, but too few rows are not representative.
    height, width = size // shape[-1], shape[-1]
    fewest = min(height, FEWEST_ROWS, limit)
    column_step = -(-width // (limit // fewest))
    columns = -(-width // column_step)
    row_step = -(-height // (limit // columns))
    rows = -(-height // row_step)
    return MatrixPart(rows, row_step, column_step, rows * columns)


def _every(value: np.ndarray, part: MatrixPart | None) -> np.ndarray:
    if part is None:
        return value
    matrix = value.reshape(-1, value.shape[-1])
    return matrix[:: part.row_step, :: part.column_step]


def _share(sizes: Sequence[int], budget: int) -> int:
    remaining = budget
    for index, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - index)
        if size > share:
            return max(share, 1)
        remaining -= size
    return budget
