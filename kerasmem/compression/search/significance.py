"""Drop of a metric on held-out samples, with its standard error."""

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
"""Held-out fraction of the samples, and its maximum number."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out samples for evaluating trials, in parts of `part` samples each.

    `batch_size` divides `part`.
    """

    data: tuple[Any, ...]
    samples: int
    part: int
    batch_size: int


def split(
    data: Dataset, batch_size: int, seed: int | None
) -> tuple[tuple[Any, ...], HeldOut]:
    """Splits samples at random into training and held-out samples.

    Raises:
        DataError: If the samples are not arrays, have no labels, or are too few.
    """
    if not is_array_data(data):
        raise DataError(
            "A search needs arrays, because it holds out some of the samples. "
            f"Received: {type(data).__name__}. Next: give data=(x, y)."
        )
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise DataError(
            "A search needs labels to evaluate its trials. Next: give data=(x, y)."
        )
    count = sample_count(data) or 0
    most_samples = min(int(_SHARE * count), _MOST)
    if most_samples < _PARTS:  # fewer parts make the standard error unreliable
        raise DataError(
            "A search holds out one fifth of data, so it needs at least "
            f"{math.ceil(_PARTS / _SHARE)} samples. Received: {count}."
        )
    batch = shared(min(batch_size, most_samples // _PARTS))
    if not batch:
        raise DataError(
            f"A search holds out one fifth of data in {_PARTS} parts, and each part "
            "must be divisible among all devices, so it needs more samples. Received: "
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
    """Mean drop of a metric, and the standard error for other samples."""

    mean: float
    error: float


def metrics_by_part(model: Model, held: HeldOut) -> list[dict[str, float]]:
    """Returns the contribution of each part to the loss and metrics of a model.

    For a mean over samples, this is the mean of the part. For other metrics, the mean
    of all contributions is the metric on all samples.
    """
    # Several steps per execution could cross the end of a part.
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
    """Returns the drop of the first metric between two models on the same samples.

    The error is the standard error of the differences per part. For metrics such as
    accuracy, the error is at least one sample, because zero observed differences do not
    imply zero error. If a metric is NaN or infinite, the drop is NaN and the error is
    infinite.

    `final_samples` is the number of validation samples, which increase the error.
    `None` assumes as many as `samples`.
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
    """Records cumulative metrics at the end of each part."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self._batches = batches
        self.seen: list[dict[str, float]] = []

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Records the metrics at the end of a part."""
        if (batch + 1) % self._batches == 0:
            self.seen.append(dict(logs or {}))
