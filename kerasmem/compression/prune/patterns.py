"""Which entries of a weight go together: single ones, N of every M, blocks.

Sources: Mishra and others, "Accelerating Sparse Deep Neural Networks", 2021 (2:4);
Narang, Undersander and Diamos, "Block-Sparse Recurrent Neural Networks", 2017.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kerasmem.compression.prune.config import UNSTRUCTURED, check_pattern
from kerasmem.compression.prune.scores import keep_largest_of_all, removed_count


class Pattern(abc.ABC):
    """How a share of entries is chosen by their scores."""

    def why_not(self, shape: Sequence[int]) -> str | None:
        """Return why weights of this shape cannot have the pattern, None if they can.

        Args:
            shape: that of the weight.
        """
        del shape
        return None

    @abc.abstractmethod
    def masks(
        self, scores: Sequence[np.ndarray], sparsity: float, axes: Sequence[int]
    ) -> list[np.ndarray]:
        """Return a bool mask per array, False for what is removed.

        Args:
            scores: how much each entry matters, an array per weight; all of them are
                ranked together.
            sparsity: share to remove, in [0, 1).
            axes: for each array the axis that its layer sums over.
        """


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Every entry for itself."""

    def masks(
        self,
        scores: Sequence[np.ndarray],
        sparsity: float,
        axes: Sequence[int],  # noqa: ARG002 - another pattern needs it
    ) -> list[np.ndarray]:
        """Return masks with exactly `floor(sparsity * size)` False in all."""
        size = sum(each.size for each in scores)
        return keep_largest_of_all(list(scores), removed_count(size, sparsity))


@dataclass(frozen=True)
class NOfM(Pattern):
    """At most `kept` of every `group` entries in a row along the summed axis.

    Groups begin at the axis's start; a last one that is shorter keeps `kept` too.
    """

    kept: int
    group: int

    def masks(
        self, scores: Sequence[np.ndarray], sparsity: float, axes: Sequence[int]
    ) -> list[np.ndarray]:
        """Return masks that remove `floor(sparsity * group)` of every group."""
        removed = removed_count(self.group, sparsity)
        return [
            self._mask(each, removed, axis)
            for each, axis in zip(scores, axes, strict=True)
        ]

    def _mask(self, scores: np.ndarray, removed: int, axis: int) -> np.ndarray:
        rows = np.moveaxis(scores, axis, -1)
        length = rows.shape[-1]
        # What is missing from the last group goes first, and leaves with the padding.
        padded = np.pad(
            np.nan_to_num(rows.astype(float), nan=np.inf, posinf=np.inf),
            [(0, 0)] * (rows.ndim - 1) + [(0, -length % self.group)],
            constant_values=-np.inf,
        )
        groups = padded.reshape(*rows.shape[:-1], -1, self.group)
        # Stable, so that among equals the first are removed; groups are short.
        order = np.argsort(groups, axis=-1, kind="stable")
        kept = np.ones(groups.shape, bool)
        np.put_along_axis(kept, order[..., :removed], values=False, axis=-1)
        mask = kept.reshape(padded.shape)[..., :length]
        return np.ascontiguousarray(np.moveaxis(mask, -1, axis))


@dataclass(frozen=True)
class Blocks(Pattern):
    """Blocks that stay or go as one; their last axes are those of the weight.

    Args:
        shape: lengths of a block, from 1; at the end of an axis a block is cut off.
        largest: True to score a block by its largest entry, False by their mean.
    """

    shape: tuple[int, ...]
    largest: bool = False

    def why_not(self, shape: Sequence[int]) -> str | None:
        """Return a reason if the weight has fewer axes than a block."""
        if len(shape) >= len(self.shape):
            return None
        return f"has {len(shape)} axes, fewer than a block"

    def masks(
        self,
        scores: Sequence[np.ndarray],
        sparsity: float,
        axes: Sequence[int],  # noqa: ARG002 - another pattern needs it
    ) -> list[np.ndarray]:
        """Return masks with exactly `floor(sparsity * blocks)` blocks False in all."""
        pooled = [self._pooled(each) for each in scores]
        size = sum(each.size for each in pooled)
        kept = keep_largest_of_all(pooled, removed_count(size, sparsity))
        return [
            self._spread(mask, each.shape)
            for mask, each in zip(kept, scores, strict=True)
        ]

    def _pooled(self, scores: np.ndarray) -> np.ndarray:
        lengths = self._lengths(scores.shape)
        padding = [(0, -n % b) for n, b in zip(scores.shape, lengths, strict=True)]
        padded = np.pad(scores.astype(float), padding, constant_values=np.nan)
        split = [(n // b, b) for n, b in zip(padded.shape, lengths, strict=True)]
        blocks = padded.reshape([length for pair in split for length in pair])
        inner = tuple(range(1, 2 * scores.ndim, 2))
        is_entry = np.ones(scores.shape, bool)
        entries = np.pad(is_entry, padding).reshape(blocks.shape)
        if self.largest:
            return np.where(entries, blocks, -np.inf).max(inner)
        return np.where(entries, blocks, 0).sum(inner) / entries.sum(inner)

    def _spread(self, kept: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        for axis, length in enumerate(self._lengths(shape)):
            kept = np.repeat(kept, length, axis)
        return kept[tuple(map(slice, shape))]

    def _lengths(self, shape: Sequence[int]) -> tuple[int, ...]:
        lengths = (1,) * (len(shape) - len(self.shape)) + self.shape
        # A block that reaches over the end of an axis is as good as cut off there.
        return tuple(map(min, lengths, (max(length, 1) for length in shape)))


def parse_pattern(name: str) -> Pattern:
    """Return the pattern that `pattern_name` named.

    Example:
        >>> parse_pattern("2:4"), parse_pattern("max 4x1")
        (NOfM(kept=2, group=4), Blocks(shape=(4, 1), largest=True))
    """
    kind, numbers = check_pattern(name)
    if kind == UNSTRUCTURED:
        return Unstructured()
    return NOfM(*numbers) if kind == "n of m" else Blocks(numbers, kind == "max")
