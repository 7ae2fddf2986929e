"""How much each entry of a weight matters, and which stay: the criteria, the masks.

Sources: Han, Pool, Tran and Dally, "Learning both Weights and Connections for Efficient
Neural Networks", 2015 (magnitude); Molchanov, Mallya, Tyree, Frosio and Kautz,
"Importance Estimation for Neural Network Pruning", 2019 (Taylor); Lee, Ajanthan and
Torr, "SNIP", 2019 (the same of one batch); Sanh, Wolf and Rush, "Movement Pruning",
2020; Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning Approach for Large
Language Models", 2023 (Wanda).
"""

import math
from collections.abc import Sequence

import numpy as np


def scores(
    criterion: str,
    weights: Sequence[np.ndarray],
    evidence: Sequence[np.ndarray] | None = None,
    seed: int = 0,
) -> list[np.ndarray]:
    """Return how much each entry matters, an array per weight; the most stays.

    Args:
        criterion: a key of `CRITERIA`.
        weights: arrays of any shapes and float dtypes.
        evidence: for each weight what the criterion has to know: the sum over batches
            of the squared product of weight and gradient (`"taylor"`), of their
            negative product (`"movement"`), or the L2 norm of the input that each entry
            multiplies, of a shape that broadcasts (`"wanda"`).
        seed: of `"random"`; the same seed gives the same scores.

    Example:
        >>> scores("magnitude", [np.array([-2.0, 1.0])])
        [array([2., 1.])]
    """
    if criterion == "random":
        return [
            np.random.default_rng((seed, index)).random(each.shape, "float32")
            for index, each in enumerate(weights)
        ]
    if evidence is not None and criterion != "wanda":
        return list(evidence)
    sizes = [magnitude(each) for each in weights]
    if evidence is not None:
        return [size * known for size, known in zip(sizes, evidence, strict=True)]
    if criterion == "magnitude/rms":
        return [_relative(size) for size in sizes]
    return sizes


def magnitude(weights: np.ndarray) -> np.ndarray:
    """Return absolute values in float32 or better, NaN as infinity."""
    exact = weights.astype(np.promote_types(weights.dtype, np.float32), copy=False)
    magnitude = np.abs(exact)
    magnitude[np.isnan(magnitude)] = np.inf
    return magnitude


def _relative(magnitude: np.ndarray) -> np.ndarray:
    """Return magnitudes divided by their root mean square."""
    scale = math.sqrt(float(np.mean(np.square(magnitude, dtype=np.float64))))
    if not 0 < scale < math.inf:
        return magnitude
    # In the type of the weights the scale of the smallest ones is zero.
    return (magnitude / np.float64(scale)).astype(magnitude.dtype)


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


_SAMPLED = 64  # one of so many entries is looked at to guess a threshold
_MARGIN, _SLACK = 1.3, 16


class Ranked:
    """Entries of several arrays in the order in which they are to be removed.

    Args:
        matters: how much each entry matters, an array per weight; ranked together.
        kept: which entries are there to be removed, bool arrays of the same shapes.
        count: number of entries to rank, at most those that are kept.
    """

    def __init__(
        self, matters: Sequence[np.ndarray], kept: Sequence[np.ndarray], count: int
    ) -> None:
        scores = np.concatenate([each.ravel() for each in matters])
        there = np.concatenate([each.ravel() for each in kept])
        self._order = smallest(scores, there, count)
        self._starts = np.cumsum([0, *(each.size for each in matters)])

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._order)

    def take(self, count: int, kept: Sequence[np.ndarray]) -> None:
        """Set the next `count` entries of `kept` to False."""
        taken, self._order = self._order[:count], self._order[count:]
        for mask, start in zip(kept, self._starts, strict=False):
            inside = taken[(taken >= start) & (taken < start + mask.size)]
            mask.reshape(-1)[inside - start] = False


def smallest(scores: np.ndarray, there: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` smallest scores, the smallest first.

    Only those below a guess are sorted, which a sample gives; if they are too few, all
    are.

    Args:
        scores: numbers, 1-D.
        there: bool; only entries where it is True count.
        count: number of indices, at most those that are there.

    Example:
        >>> smallest(np.array([3, 1, 2, 0]), np.array([True, True, True, False]), 2)
        array([1, 2])
    """
    sample = scores[::_SAMPLED][there[::_SAMPLED]]
    place = int(_MARGIN * count / _SAMPLED) + _SLACK
    candidates = np.empty(0, int)
    if place < sample.size:
        guess = np.partition(sample, place)[place]
        candidates = np.flatnonzero((scores <= guess) & there)
    if len(candidates) < count:
        candidates = np.flatnonzero(there)
    order = np.argsort(scores[candidates])
    return candidates[order[:count]]


def exchange(
    mask: np.ndarray, size: np.ndarray, gradient: np.ndarray, fraction: float
) -> np.ndarray:
    """Return a mask of as many entries, where the smallest changed places.

    Args:
        mask: True for what remains.
        size: how much the remaining entries matter.
        gradient: of the loss to every entry, also the removed ones.
        fraction: share of the remaining entries that leaves, in [0, 1].

    Example:
        >>> mask = np.array([True, True, False, False])
        >>> exchange(mask, np.array([3, 1, 0, 0]), np.array([0, 0, 1, 5]), 0.5).tolist()
        [True, False, False, True]
    """
    kept = int(np.count_nonzero(mask))
    count = min(int(fraction * kept), mask.size - kept)
    remaining, removed = np.flatnonzero(mask), np.flatnonzero(~mask)
    stays = keep_largest(size.ravel()[remaining], count)
    comes = ~keep_largest(-np.abs(gradient.ravel()[removed]), count)
    changed = mask.ravel().copy()
    changed[remaining[~stays]] = False
    changed[removed[comes]] = True
    return changed.reshape(mask.shape)
