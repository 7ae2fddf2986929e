"""How much worse a model is than another, and how sure that is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras

from kerasmem.compression.judge import first_metric, in_order, is_better_if_higher
from kerasmem.compression.search.split import Held

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


def metrics_by_part(model: Any, held: Held) -> list[dict[str, float]]:
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
        {name: number * value for name, value in in_order(model, seen).items()}
        for number, seen in enumerate(ends.seen, 1)
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

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the metrics, if a part is over."""
        if (batch + 1) % self._batches == 0:
            self.seen.append(dict(logs or {}))
