"""Matrices as products of thinner ones.

Carl Eckart, Gale Young: The approximation of one matrix by another of lower rank, 1936.
"""

import numpy as np


def factors(
    matrix: np.ndarray, ratio: float | None, energy: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices, (m, rank) and (rank, n), whose product is nearest.

    Both have columns or rows of the same lengths, so that training moves both alike.

    Args:
        matrix: (m, n).
        ratio: share of the full rank that is kept; None to go by energy.
        energy: share of the sum of squares that has to stay.
    """
    left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
    rank = _rank(sizes, ratio, energy)
    root = np.sqrt(sizes[:rank])
    return left[:, :rank] * root, root[:, None] * right[:rank]


def directions(
    matrix: np.ndarray, ratio: float | None, energy: float | None
) -> np.ndarray:
    """Return an orthonormal basis, (m, rank), of what the columns have most of.

    Takes what `factors` does.
    """
    left, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, : _rank(sizes, ratio, energy)]


def _rank(sizes: np.ndarray, ratio: float | None, energy: float | None) -> int:
    """Return how many of the descending singular values are kept."""
    if ratio is not None:
        return max(1, round(ratio * len(sizes)))
    kept = np.cumsum(np.square(sizes))
    return min(len(sizes), int(np.searchsorted(kept, (energy or 1.0) * kept[-1])) + 1)
