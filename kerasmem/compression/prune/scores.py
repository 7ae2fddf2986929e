"""Importance scores of weight entries, sparsity patterns and masks.

Sources: Han, Pool, Tran and Dally, "Learning both Weights and Connections for Efficient
Neural Networks", 2015 (magnitude); Molchanov, Mallya, Tyree, Frosio and Kautz,
"Importance Estimation for Neural Network Pruning", 2019 (Taylor); Lee, Ajanthan and
Torr, "SNIP", 2019 (the same of one batch); Sanh, Wolf and Rush, "Movement Pruning",
2020; Sun, Liu, Bair and Kolter, "A Simple and Effective Pruning Approach for Large
Language Models", 2023 (Wanda); Mishra and others, "Accelerating Sparse Deep Neural
Networks", 2021 (2:4); Narang, Undersander and Diamos, "Block-Sparse Recurrent Neural
Networks", 2017.
"""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerasmem.compression.prune import UNSTRUCTURED, check_pattern


def scores(
    criterion: str,
    weights: Sequence[np.ndarray],
    evidence: Sequence[np.ndarray] | None = None,
    seed: int = 0,
) -> list[np.ndarray]:
    """Returns importance scores, one array per weight. The highest scores are kept.

    Args:
        criterion: A key of `CRITERIA`.
        weights: Float arrays of any shape.
        evidence: One array per weight. `"taylor"`: sum over batches of the squared
            product of weight and gradient. `"movement"`: sum of the negative product.
            `"wanda"`: broadcastable L2 norm of the input that each entry multiplies.
        seed: Random seed of the criterion `"random"`. Defaults to 0.

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
        return [
            size * evidence_of_one
            for size, evidence_of_one in zip(sizes, evidence, strict=True)
        ]
    if criterion == "magnitude/rms":
        return [_relative(size) for size in sizes]
    return sizes


def magnitude(weights: np.ndarray) -> np.ndarray:
    """Returns absolute values in at least float32. NaN becomes infinity."""
    exact = weights.astype(np.promote_types(weights.dtype, np.float32), copy=False)
    magnitude = np.abs(exact)
    magnitude[np.isnan(magnitude)] = np.inf
    return magnitude


def _relative(magnitude: np.ndarray) -> np.ndarray:
    scale = math.sqrt(float(np.mean(np.square(magnitude, dtype=np.float64))))
    if not 0 < scale < math.inf:
        return magnitude
    # In the dtype of the weights, the scale can underflow to zero.
    return (magnitude / np.float64(scale)).astype(magnitude.dtype)


def removed_count(size: int, sparsity: float) -> int:
    """Returns the number of entries that a `sparsity` in [0, 1) removes.

    Example:
        >>> removed_count(10, 0.3), removed_count(3, 0.5)
        (3, 1)
    """
    # A computed sparsity can lie a rounding error below a whole number of entries.
    return max(0, min(math.floor(sparsity * size * (1 + 1e-12)), size - 1))


def keep_largest(scores: np.ndarray, removed: int) -> np.ndarray:
    """Returns a bool mask that is False at exactly `removed` smallest scores.

    NaN counts as largest. The first of equal scores are removed.

    Example:
        >>> keep_largest(np.array([3.0, 1.0, 2.0, 1.0]), 1).tolist()
        [True, False, True, True]
    """
    flat = np.nan_to_num(scores.ravel(), nan=np.inf, posinf=np.inf, neginf=-np.inf)
    mask = np.ones(flat.size, bool)
    if removed == 0:
        return mask.reshape(scores.shape)
    # Partial selection is faster than sorting, but slow with many equal scores, such as
    # those of removed entries. Ties are removed in order.
    threshold = flat.min()
    rest = flat[flat > threshold]
    place = removed - (flat.size - rest.size) - 1
    if place >= 0:
        threshold = np.partition(rest, place)[place]
    np.greater_equal(flat, threshold, out=mask)
    missing = removed - (flat.size - np.count_nonzero(mask))
    ties = np.flatnonzero(flat == threshold)
    mask[ties[:missing]] = False
    return mask.reshape(scores.shape)


def keep_largest_of_all(scores: list[np.ndarray], removed: int) -> list[np.ndarray]:
    """Returns masks that are False at the `removed` smallest scores of all arrays."""
    if len(scores) == 1:
        return [keep_largest(scores[0], removed)]
    mask = keep_largest(np.concatenate([each.ravel() for each in scores]), removed)
    parts = np.split(mask, np.cumsum([each.size for each in scores])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, scores, strict=True)]


def exchange(
    mask: np.ndarray, size: np.ndarray, gradient: np.ndarray, fraction: float
) -> np.ndarray:
    """Returns a mask in which the smallest entries are exchanged for removed ones.

    `size` and `gradient` have one value per entry. `fraction` is the fraction of the
    remaining entries to exchange.

    Example:
        >>> mask = np.array([True, True, False, False])
        >>> exchange(mask, np.array([3, 1, 0, 0]), np.array([0, 0, 1, 5]), 0.5).tolist()
        [True, False, False, True]
    """
    total = int(np.count_nonzero(mask))
    count = min(int(fraction * total), mask.size - total)
    remaining, zeros = np.flatnonzero(mask), np.flatnonzero(~mask)
    stays = keep_largest(size.ravel()[remaining], count)
    comes = ~keep_largest(-np.abs(gradient.ravel()[zeros]), count)
    new_mask = mask.ravel().copy()
    new_mask[remaining[~stays]] = False
    new_mask[zeros[comes]] = True
    return new_mask.reshape(mask.shape)


class Pattern(abc.ABC):
    """Selects the entries to keep by their scores."""

    def why_not(self, shape: Sequence[int]) -> str | None:
        """Returns why weights of this shape cannot have the pattern, or None."""
        del shape
        return None

    @abc.abstractmethod
    def masks(
        self, scores: Sequence[np.ndarray], sparsity: float, axes: Sequence[int]
    ) -> list[np.ndarray]:
        """Returns one bool mask per array, False for removed entries.

        All arrays are ranked together. `axes` contains the summed axis of each array.
        """


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Removes single entries."""

    def masks(
        self,
        scores: Sequence[np.ndarray],
        sparsity: float,
        axes: Sequence[int],  # noqa: ARG002 - another pattern needs it
    ) -> list[np.ndarray]:
        """Returns masks with exactly `floor(sparsity * size)` False in total."""
        size = sum(each.size for each in scores)
        return keep_largest_of_all(list(scores), removed_count(size, sparsity))


@dataclass(frozen=True)
class NOfM(Pattern):
    """Keeps at most `nonzero` of every `group` entries along the summed axis.

    Groups start at the beginning of the axis. A shorter last group also keeps
    `nonzero` entries.
    """

    nonzero: int
    group: int

    def masks(
        self, scores: Sequence[np.ndarray], sparsity: float, axes: Sequence[int]
    ) -> list[np.ndarray]:
        """Returns masks that remove `floor(sparsity * group)` of every group."""
        zeros_per_group = removed_count(self.group, sparsity)
        return [
            self._mask(each, zeros_per_group, axis)
            for each, axis in zip(scores, axes, strict=True)
        ]

    def _mask(self, scores: np.ndarray, removed: int, axis: int) -> np.ndarray:
        rows = np.moveaxis(scores, axis, -1)
        length = rows.shape[-1]
        # Padding has the lowest score, so it is removed before any entry.
        whole_groups = np.pad(
            np.nan_to_num(rows.astype(float), nan=np.inf, posinf=np.inf),
            [(0, 0)] * (rows.ndim - 1) + [(0, -length % self.group)],
            constant_values=-np.inf,
        )
        groups = whole_groups.reshape(*rows.shape[:-1], -1, self.group)
        # A stable sort removes the first of equal scores.
        order = np.argsort(groups, axis=-1, kind="stable")
        group_masks = np.ones(groups.shape, bool)
        np.put_along_axis(group_masks, order[..., :removed], values=False, axis=-1)
        mask = group_masks.reshape(whole_groups.shape)[..., :length]
        return np.ascontiguousarray(np.moveaxis(mask, -1, axis))


@dataclass(frozen=True)
class Blocks(Pattern):
    """Removes whole blocks along the last axes of a weight.

    Blocks are cut off at the end of an axis. If `largest`, a block is scored by its
    largest entry instead of the mean.
    """

    shape: tuple[int, ...]
    largest: bool = False

    def why_not(self, shape: Sequence[int]) -> str | None:
        """Returns a reason if the weight has fewer axes than a block."""
        if len(shape) >= len(self.shape):
            return None
        return f"has {len(shape)} axes, fewer than a block"

    def masks(
        self,
        scores: Sequence[np.ndarray],
        sparsity: float,
        axes: Sequence[int],  # noqa: ARG002 - another pattern needs it
    ) -> list[np.ndarray]:
        """Returns masks with `floor(sparsity * blocks)` blocks False in total."""
        block_scores = [self._pooled(each) for each in scores]
        size = sum(each.size for each in block_scores)
        block_masks = keep_largest_of_all(block_scores, removed_count(size, sparsity))
        return [
            self._spread(mask, each.shape)
            for mask, each in zip(block_masks, scores, strict=True)
        ]

    def _pooled(self, scores: np.ndarray) -> np.ndarray:
        lengths = self._lengths(scores.shape)
        padding = [(0, -n % b) for n, b in zip(scores.shape, lengths, strict=True)]
        whole_blocks = np.pad(scores.astype(float), padding, constant_values=np.nan)
        split = [(n // b, b) for n, b in zip(whole_blocks.shape, lengths, strict=True)]
        blocks = whole_blocks.reshape([length for pair in split for length in pair])
        inner = tuple(range(1, 2 * scores.ndim, 2))
        is_entry = np.ones(scores.shape, bool)
        entries = np.pad(is_entry, padding).reshape(blocks.shape)
        if self.largest:
            return np.where(entries, blocks, -np.inf).max(inner)
        return np.where(entries, blocks, 0).sum(inner) / entries.sum(inner)

    def _spread(self, mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        for axis, length in enumerate(self._lengths(shape)):
            mask = np.repeat(mask, length, axis)
        return mask[tuple(map(slice, shape))]

    def _lengths(self, shape: Sequence[int]) -> tuple[int, ...]:
        lengths = (1,) * (len(shape) - len(self.shape)) + self.shape
        # A block longer than the axis is cut off at its end.
        return tuple(map(min, lengths, (max(length, 1) for length in shape)))


def parse_pattern(name: str) -> Pattern:
    """Returns the pattern for the output of `pattern_name`.

    Example:
        >>> parse_pattern("2:4"), parse_pattern("max 4x1")
        (NOfM(nonzero=2, group=4), Blocks(shape=(4, 1), largest=True))
    """
    kind, numbers = check_pattern(name)
    if kind == UNSTRUCTURED:
        return Unstructured()
    return NOfM(*numbers) if kind == "n of m" else Blocks(numbers, kind == "max")
