"""The running figures of an epoch, and how a step adds to them.

Two small float32 arrays ride in the step. One is a vector with figures of the whole
gradient, then two of each variable: the number of the first update, from 1, whose
gradient was not finite, and the bytes of the largest sparse gradient. The other has a
row of figures per variable, of sampled steps only.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from kerasmem.records import VariableGradient

NORM, NONFINITE, STEPS, SKIPPED, LARGEST, LAST, HEAD = range(7)
_SUMS = LARGEST  # what stands before is a sum over the steps

_FIGURES = ("norm", "entry", "nonzero", "nonfinite", "finite", "steps")
_SUMMED = (*_FIGURES, "ratio", "ratios")
_LARGEST = ("largest_norm", "largest_entry")
_COLUMNS = (*_SUMMED, *_LARGEST, "last_norm")
STATISTICS = len(_FIGURES)
"""Number of figures per variable that are known before the update."""


def no_steps(variables: int) -> np.ndarray:
    """Return the vector of an epoch that begins."""
    return np.zeros(HEAD + 2 * variables, "float32")


def no_rows(variables: int) -> np.ndarray:
    """Return the rows of an epoch that begins."""
    return np.zeros((variables, len(_COLUMNS)), "float32")


def with_step(vector: Any, squared_norms: Any, sparse_bytes: Any) -> Any:
    """Return the vector with one more update.

    Args:
        vector: as it was.
        squared_norms: the square of the L2 norm of each variable's gradient.
        sparse_bytes: bytes of each gradient that is sparse, else 0.
    """
    variables = squared_norms.shape[0]
    summed, largest, _, first, most = ops.split(
        vector, np.cumsum([_SUMS, 1, 1, variables]).tolist()
    )
    norm = ops.sqrt(ops.sum(squared_norms))[None]
    is_finite = ops.isfinite(norm)
    kept = ops.where(is_finite, norm, 0.0)
    one = ops.ones_like(norm)
    nonfinite = one - ops.cast(is_finite, "float32")
    added = ops.concatenate([kept, nonfinite, one, one - one])
    is_first = ops.logical_and(
        ops.logical_not(ops.isfinite(squared_norms)), ops.equal(first, 0.0)
    )
    number = summed[STEPS] + 1.0
    return ops.concatenate(
        [
            summed + added,
            ops.maximum(largest, kept),
            norm,
            ops.where(is_first, number, first),
            ops.maximum(most, sparse_bytes),
        ]
    )


def with_skipped(vector: Any, finite: Any) -> Any:
    """Return the vector with a step that was skipped unless `finite`."""
    only_skipped = np.zeros(vector.shape, "float32")
    only_skipped[SKIPPED] = 1.0
    skipped = 1.0 - ops.cast(finite, "float32")
    return vector + skipped * ops.convert_to_tensor(only_skipped)


def statistics_of(squared_norms: Any, figures: Any) -> Any:
    """Return what a sampled step tells of some gradients, `STATISTICS` figures each.

    Args:
        squared_norms: the square of the L2 norm of each.
        figures: what `GradientMeter.statistics` returned.
    """
    is_finite = ops.isfinite(squared_norms)
    one = ops.ones_like(squared_norms)[:, None]
    measured = ops.stack([ops.sqrt(squared_norms), figures[:, 0]], axis=1)
    kept = ops.where(is_finite[:, None], measured, 0.0)
    finite = ops.cast(is_finite, "float32")[:, None]
    return ops.concatenate([kept, figures[:, 1:], finite, one], axis=1)


def with_rows(rows: Any, statistics: Any, changes: Any) -> Any:
    """Return the rows with those of one more step.

    Args:
        rows: as they were.
        statistics: a row per variable of what `statistics_of` returned; zeros if there
            was no gradient, or the step is not sampled.
        changes: per variable the L2 norm of its change, and that of itself before.
            Where the latter is 0, or one is not finite, no ratio is counted.
    """
    count = len(_SUMMED)
    summed, largest, last = ops.split(rows, [count, count + len(_LARGEST)], axis=1)
    ratio = changes[:, :1] / changes[:, 1:]
    is_known = ops.isfinite(ratio)
    ratios = [ops.where(is_known, ratio, 0.0), ops.cast(is_known, "float32")]
    is_seen = ops.not_equal(statistics[:, -1:], 0.0)
    is_finite = ops.not_equal(statistics[:, -2:-1], 0.0)
    newest = ops.where(is_finite, statistics[:, :1], np.nan)
    return ops.concatenate(
        [
            summed + ops.concatenate([statistics, *ratios], axis=1),
            ops.maximum(largest, statistics[:, : len(_LARGEST)]),
            ops.where(is_seen, newest, last),
        ],
        axis=1,
    )


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
