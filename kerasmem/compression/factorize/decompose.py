"""Matrices as products of thinner ones.

Carl Eckart, Gale Young: The approximation of one matrix by another of lower rank, 1936.
"""

import numpy as np


def factors(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two matrices, (m, rank) and (rank, n), whose product is nearest.

    Both have columns or rows of the same lengths, so that training moves both alike.

    Args:
        matrix: (m, n).
        rank: from 1 to min(m, n).
    """
    left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
    root = np.sqrt(sizes[:rank])
    return left[:, :rank] * root, root[:, None] * right[:rank]


def directions(matrix: np.ndarray, rank: int) -> np.ndarray:
    """Return an orthonormal basis, (m, rank), of what the columns have most of.

    Args:
        matrix: (m, n).
        rank: from 1 to min(m, n).
    """
    left, _, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, :rank]


def rank_for(matrix: np.ndarray, ratio: float | None, energy: float | None) -> int:
    """Return the rank that is kept.

    Args:
        matrix: (m, n).
        ratio: share of its full rank; None to go by energy.
        energy: share of the sum of squares that has to stay.
    """
    full = min(matrix.shape)
    if ratio is not None:
        return max(1, round(ratio * full))
    sizes = np.linalg.svd(matrix, compute_uv=False)
    kept = np.cumsum(np.square(sizes))
    return min(full, int(np.searchsorted(kept, (energy or 1.0) * kept[-1])) + 1)
