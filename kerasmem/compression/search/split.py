"""Samples to train trials on, and others to judge them by."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.errors import DataError
from kerasmem.files.data import is_array_data, sample_count, shared, take

_PARTS = 20
_SHARE, _MOST = 0.2, 20_000
"""What is held out: a share of the samples, at most so many."""


@dataclass(frozen=True)
class Held:
    """Samples that judge trials, in parts of equal length.

    Args:
        data: the samples, `(x, y)` or `(x, y, sample_weight)`.
        samples: number of them.
        part: number of them in one part.
        batch_size: number of them in a batch; divides a part.
    """

    data: tuple[Any, ...]
    samples: int
    part: int
    batch_size: int


def split(data: Any, batch_size: int, seed: int | None) -> tuple[tuple[Any, ...], Held]:
    """Return the samples to train on, and those that are held out to judge by.

    They are drawn at random, and in no order.

    Args:
        data: samples in arrays, with labels.
        batch_size: most samples in a batch.
        seed: of the draw; None for another one each time.

    Raises:
        DataError: if the samples are no arrays, have no labels, or are too few.
    """
    if not is_array_data(data):
        raise DataError(
            "A search holds samples of data out to judge by, and can do so only from "
            f"arrays. Received: {type(data).__name__}. Next: give data=(x, y)."
        )
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise DataError(
            "A search judges what it tries, and that takes labels: give data=(x, y)."
        )
    count = sample_count(data) or 0
    wanted = min(int(_SHARE * count), _MOST)
    if wanted < _PARTS:  # of fewer parts a standard error would be a guess
        raise DataError(
            "A search holds a fifth of data out to judge by, so it takes at least "
            f"{math.ceil(_PARTS / _SHARE)} samples. Received: {count}."
        )
    batch = shared(min(batch_size, wanted // _PARTS))
    if not batch:
        raise DataError(
            f"A search judges by {_PARTS} parts of a fifth of data, and every part "
            "is shared by all devices, which takes more samples. Received: "
            f"{count} samples."
        )
    part = wanted // _PARTS // batch * batch
    samples = part * _PARTS
    order = np.random.default_rng(seed).permutation(count)
    held = Held(take(data, order[:samples]), samples, part, batch)
    return take(data, order[samples:]), held
