"""How much worse a model is than another on held-out samples, how sure that is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import numpy as np

from kerasmem.compression.judge import first_metric, in_order, is_better_if_higher
from kerasmem.errors import DataError
from kerasmem.files.data import is_array_data, sample_count, shared, take
from kerasmem.types import Dataset, Logs, Model

_PARTS = 20
_SHARE, _MOST = 0.2, 20_000
"""What is held out: a share of the samples, at most so many."""


@dataclass(frozen=True)
class HeldOut:
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


def split(
    data: Dataset, batch_size: int, seed: int | None
) -> tuple[tuple[Any, ...], HeldOut]:
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
    most_samples = min(int(_SHARE * count), _MOST)
    if most_samples < _PARTS:  # of fewer parts a standard error would be a guess
        raise DataError(
            "A search holds a fifth of data out to judge by, so it takes at least "
            f"{math.ceil(_PARTS / _SHARE)} samples. Received: {count}."
        )
    batch = shared(min(batch_size, most_samples // _PARTS))
    if not batch:
        raise DataError(
            f"A search judges by {_PARTS} parts of a fifth of data, and every part "
            "is shared by all devices, which takes more samples. Received: "
            f"{count} samples."
        )
    part = most_samples // _PARTS // batch * batch
    samples = part * _PARTS
    order = np.random.default_rng(seed).permutation(count)
    held_out = HeldOut(take(data, order[:samples]), samples, part, batch)
    return take(data, order[samples:]), held_out


Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Drop:
    """By how much a metric got worse.

    Args:
        mean: over all samples.
        error: standard error of what it will be on other samples.
    """

    mean: float
    error: float


def metrics_by_part(model: Model, held: HeldOut) -> list[dict[str, float]]:
    """Return what each part of the samples adds to the loss and metrics of a model.

    For a mean over samples that is the mean over the part. For any other metric it is
    such that the mean over the parts is the metric of all samples.

    Args:
        model: a compiled model.
        held: the samples.
    """
    # Its parts would be cut in two otherwise; the caller's own model is another one.
    model.steps_per_execution = 1
    ends = _PartEnds(held.part // held.batch_size)
    x, y, *weight = held.data
    model.evaluate(
        x,
        y,
        sample_weight=weight[0] if weight else None,
        batch_size=held.batch_size,
        callbacks=[ends],
        verbose=0,
    )
    sums = [
        {name: number * value for name, value in in_order(model, values).items()}
        for number, values in enumerate(ends.seen, 1)
    ]
    return [
        {name: now[name] - then[name] for name in now}
        for then, now in pairwise([dict.fromkeys(sums[0], 0.0), *sums])
    ]


def drop(
    before: Sequence[Metrics],
    after: Sequence[Metrics],
    samples: int,
    final_samples: int | None,
) -> Drop:
    """Return by how much the first metric got worse from one model to another.

    Both are judged on the same samples, so the error is that of their difference from
    part to part. Of a share of samples, such as an accuracy, one sample more that gets
    worse is always allowed for: that none of them did does not mean that none will.
    If a metric is no number, the drop is none, and its error infinite.

    Args:
        before: metrics of one model, part by part.
        after: metrics of the other on the same parts.
        samples: number of samples in all parts.
        final_samples: number of the other samples that the drop will be seen on, which
            add an error of their own; None for as many.
    """
    name = first_metric(before[0])
    sign = 1 if is_better_if_higher(name) else -1
    drops = [
        sign * (old[name] - new[name]) for old, new in zip(before, after, strict=True)
    ]
    if not all(map(math.isfinite, drops)):
        return Drop(math.nan, math.inf)
    least = 1 / samples if is_better_if_higher(name) else 0.0
    error = math.hypot(statistics.stdev(drops) / math.sqrt(len(drops)), least)
    others = samples / (final_samples or samples)
    return Drop(statistics.fmean(drops), error * math.sqrt(1 + others))


class _PartEnds(keras.callbacks.Callback):
    """Keeps the metrics of all samples so far, at the end of each part."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self._batches = batches
        self.seen: list[dict[str, float]] = []

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Keep the metrics, if a part is over."""
        if (batch + 1) % self._batches == 0:
            self.seen.append(dict(logs or {}))
