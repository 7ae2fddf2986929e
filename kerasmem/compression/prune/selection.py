"""Keeping the largest of some scores, exactly as many as asked for."""

import math

import numpy as np


def removed_count(size: int, sparsity: float) -> int:
    """Return how many of `size` entries a `sparsity` in [0, 1) removes.

    Example:
        >>> removed_count(10, 0.3), removed_count(3, 0.5)
        (3, 1)
    """
    # A share that was computed may lie a rounding below a whole number of entries.
    return max(0, min(math.floor(sparsity * size * (1 + 1e-12)), size - 1))


def keep_largest(scores: np.ndarray, removed: int) -> np.ndarray:
    """Return a bool mask of `scores` with exactly the `removed` smallest False.

    Args:
        scores: numbers of any shape; NaN counts as largest.
        removed: number of entries to remove, from 0 to the size.

    Returns:
        The mask, of the shape of `scores`. Among equals the first are removed.

    Example:
        >>> keep_largest(np.array([3.0, 1.0, 2.0, 1.0]), 1).tolist()
        [True, False, True, True]
    """
    flat = np.nan_to_num(scores.ravel(), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    kept = np.ones(flat.size, bool)
    if removed == 0:
        return kept.reshape(scores.shape)
    # Selection, not sorting; then exactly as many of the ties as are still due.
    threshold = np.partition(flat, removed - 1)[removed - 1]
    np.greater_equal(flat, threshold, out=kept)
    missing = removed - (flat.size - np.count_nonzero(kept))
    ties = np.flatnonzero(flat == threshold)
    kept[ties[:missing]] = False
    return kept.reshape(scores.shape)


def keep_largest_of_all(scores: list[np.ndarray], removed: int) -> list[np.ndarray]:
    """Return a mask per array, with exactly the `removed` smallest of all False."""
    if len(scores) == 1:
        return [keep_largest(scores[0], removed)]
    kept = keep_largest(np.concatenate([each.ravel() for each in scores]), removed)
    parts = np.split(kept, np.cumsum([each.size for each in scores])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, scores, strict=True)]
