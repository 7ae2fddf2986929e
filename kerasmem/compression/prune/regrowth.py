"""Schedules on which weights that were removed may come back.

Sources: Evci, Gale, Menick, Castro and Elsen, "Rigging the Lottery: Making All Tickets
Winners", 2020 (RigL); Guo, Yao and Chen, "Dynamic Network Surgery for Efficient DNNs",
2016 (splicing).
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from kerasmem.compression.prune.schedules import Polynomial, Schedule, check_sparsity
from kerasmem.compression.prune.selection import keep_largest


@dataclass(frozen=True)
class RigL(Schedule):
    """Sparse from `begin` on; every so often the smallest weights change places.

    Those that leave are the smallest; those that come are where the gradient is
    largest, and start at zero. How many change falls from `fraction` to none at `end`,
    half a wave of a cosine.

    Args:
        fraction: share of the remaining weights that changes places at first, in
            [0, 1).

    Example:
        >>> RigL(end=0.75).sparsity(0.1, 0.9)
        0.9
    """

    _: KW_ONLY
    end: float | None = 0.75
    fraction: float = 0.3
    name: ClassVar[str] = "rigl"
    regrowth: ClassVar[str | None] = "gradient"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sparsity(self.fraction, "fraction")

    def rise(self, progress: float, final: float) -> float:  # noqa: ARG002
        """Return the final sparsity."""
        return final

    def exchanged(self, place: float) -> float:
        """Return the share of the remaining weights that changes places at `place`."""
        span = 0.0 if self.end is None else self.end - self.begin
        progress = min(max((place - self.begin) / span, 0.0), 1.0) if span else 0.0
        return self.fraction / 2 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Splicing(Polynomial):
    """A rise on which removed weights go on learning unseen, and may come back.

    At every pruning all weights are ranked anew, the removed ones by the value they
    would have by now. It takes a float32 per weight while training.
    """

    _: KW_ONLY
    end: float | None = 0.75
    name: ClassVar[str] = "splicing"
    regrowth: ClassVar[str | None] = "splicing"


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
