"""Magnitude pruning on NumPy arrays: which entries stay.

Source: Han, Pool, Tran and Dally, "Learning both Weights and Connections for Efficient
Neural Networks", 2015; the cubic schedule is that of Zhu and Gupta, "To prune, or not
to prune: exploring the efficacy of pruning for model compression", 2017.
"""

import math
from collections.abc import Sequence

import numpy as np


def magnitude_mask(values: np.ndarray, sparsity: float) -> np.ndarray:
    """Return a bool mask that is False for the smallest entries of `values`.

    Args:
        values: weights of any shape.
        sparsity: share of entries to remove, in [0, 1).

    Returns:
        The mask, of the shape of `values`, with exactly `floor(sparsity * size)` False.
        Among equals the first are removed. NaN counts as largest.

    Example:
        >>> magnitude_mask(np.array([3.0, -1.0, 2.0, 0.5]), 0.5).tolist()
        [True, False, True, False]
    """
    removed = removed_count(values.size, sparsity)
    return _keep_largest(_magnitude(values).ravel(), removed).reshape(values.shape)


def global_masks(weights: Sequence[np.ndarray], sparsity: float) -> list[np.ndarray]:
    """Return one mask per array, removing the smallest entries of all together.

    Entries are compared after division by their own array's root mean square, so that
    an array of small numbers is not emptied for its scale alone.

    Args:
        weights: arrays of any shapes.
        sparsity: share of all entries to remove, in [0, 1).

    Returns:
        Masks of the shapes of `weights`, together with exactly
        `floor(sparsity * total size)` False.
    """
    scores = np.concatenate([_relative_magnitude(w).ravel() for w in weights])
    kept = _keep_largest(scores, removed_count(scores.size, sparsity))
    ends = np.cumsum([w.size for w in weights])[:-1]
    parts = np.split(kept, ends)
    return [part.reshape(w.shape) for part, w in zip(parts, weights, strict=True)]


def removed_count(size: int, sparsity: float) -> int:
    """Return how many of `size` entries a `sparsity` in [0, 1) removes."""
    return math.floor(sparsity * size)


def cubic_sparsity(progress: float, final: float) -> float:
    """Return the sparsity at `progress` (0 to 1): fast at first, slow at the end.

    Example:
        >>> [round(cubic_sparsity(p, 0.8), 3) for p in (0.0, 0.5, 1.0)]
        [0.0, 0.7, 0.8]
    """
    done = min(max(progress, 0.0), 1.0)
    return final * (1.0 - (1.0 - done) ** 3)


def _magnitude(values: np.ndarray) -> np.ndarray:
    """Return absolute values in float32 or better, NaN as infinity."""
    exact = values.astype(np.promote_types(values.dtype, np.float32))
    return np.nan_to_num(np.abs(exact), nan=np.inf, posinf=np.inf)


def _relative_magnitude(values: np.ndarray) -> np.ndarray:
    magnitude = _magnitude(values)
    scale = math.sqrt(float(np.mean(np.square(magnitude, dtype=np.float64))))
    return magnitude / scale if 0 < scale < math.inf else magnitude


def _keep_largest(scores: np.ndarray, removed: int) -> np.ndarray:
    """Return a mask of the 1-D `scores` with the `removed` smallest False."""
    kept = np.ones(scores.size, bool)
    if removed == 0:
        return kept
    # Selection, not sorting; then exactly as many of the ties as are still due.
    threshold = np.partition(scores, removed - 1)[removed - 1]
    below = scores < threshold
    kept[below] = False
    ties = np.flatnonzero(scores == threshold)
    kept[ties[: removed - np.count_nonzero(below)]] = False
    return kept
