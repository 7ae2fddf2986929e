"""Detection of a validation loss far from the training loss, with a probable cause."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kerasmem.callbacks.gradient_signs import layer_of, layer_words
from kerasmem.compression.batch_norm import batch_norms
from kerasmem.graph.values import to_numpy
from kerasmem.records import Finding
from kerasmem.types import Model

FAR = 2.0
"""Minimum ratio of validation loss to training loss for a finding."""

EPOCHS_OF_LAG = 2
"""Consecutive epochs of lagging statistics before a finding."""

_LEAST_ACCURACY_DROP = 0.2
_LEAST_GAP = 0.5
"""Minimum distance of moving mean and batch mean, in standard deviations."""

_LEAST_VARIANCE_RATIO = 2.0


Statistics = tuple[np.ndarray, np.ndarray]
"""Moving mean and moving variance."""


def lag(before: Statistics, after: Statistics, remaining: float) -> tuple[float, float]:
    """Return the distance of moving statistics from the batch statistics of an epoch.

    `after` is `remaining * before + (1 - remaining) * batches`, so the batch statistics
    follow without another pass over the data. `remaining` is the momentum to the power
    of the number of batches.

    Returns:
        Mean distance of the means over channels, in standard deviations, and geometric
        mean of the variance ratios, at least 1.

    Example:
        >>> zero, one, two = np.zeros(1), np.ones(1), np.full(1, 2.0)
        >>> lag((zero, one), (one, one), 0.5)  # the mean of the batches is 2
        (1.0, 1.0)
    """
    means, variances = (
        old + (new - old) / (1 - remaining)
        for old, new in zip(before, after, strict=True)
    )
    tiny = np.finfo("float32").tiny
    batches, moving = np.maximum(variances, tiny), np.maximum(after[1], tiny)
    gap = np.abs(after[0] - means) / np.sqrt(batches)
    ratio = np.abs(np.log(moving / batches))
    return float(gap.mean()), float(np.exp(ratio.mean()))


class ValidationGap:
    """Reports a validation loss far from the training loss once per fit.

    The cause must be lagging statistics of BatchNormalization, measured in two
    consecutive epochs. The validation loss must be at least twice the training loss. If
    the logs contain accuracies, the accuracy must also drop by 0.2.
    """

    def __init__(self, monitor: str) -> None:
        self._monitor = monitor
        self.start_fit()

    def start_fit(self) -> None:
        """Start a new fit."""
        self._before: dict[int, Statistics] = {}
        self._lagging_epochs = 0
        self._is_reported = False

    def start_epoch(self, model: Model) -> None:
        """Store the moving statistics at the start of an epoch."""
        self._before = {id(norm): _statistics(norm) for norm in _trained_norms(model)}

    def after_epoch(
        self, epoch: int, logs: Mapping[str, Any], model: Model, batches: int
    ) -> list[Finding]:
        """Return a finding if the validation loss is far from the training loss."""
        loss, val_loss = (float(logs.get(n, math.nan)) for n in ("loss", "val_loss"))
        if self._is_reported or not math.isfinite(loss + val_loss):
            return []
        lags = {}
        if val_loss >= FAR * loss > 0 and _is_worse(logs):
            lags = self._lags(model, batches)
        self._lagging_epochs = self._lagging_epochs + 1 if lags else 0
        if self._lagging_epochs < EPOCHS_OF_LAG:
            return []
        self._is_reported = True
        about = (epoch, next(iter(lags)) if len(lags) == 1 else None, self._monitor)
        text = _lag_text(lags, logs)
        return [Finding("validation gap", text, *about, layers=tuple(lags))]

    def _lags(self, model: Model, batches: int) -> dict[str, tuple[float, float]]:
        lags = {}
        for norm in _trained_norms(model):
            before, remaining = self._before.get(id(norm)), norm.momentum**batches
            if before is not None and 0 <= remaining < 1:
                gap, ratio = lag(before, _statistics(norm), remaining)
                if gap >= _LEAST_GAP or ratio >= _LEAST_VARIANCE_RATIO:
                    path = norm.moving_mean.path.removeprefix(f"{model.name}/")
                    lags[layer_of(path)] = gap, ratio
        return lags


def _trained_norms(model: Model) -> list[Any]:
    return [norm for norm in batch_norms(model) if norm.built and norm.trainable]


def _statistics(norm: Any) -> Statistics:
    mean, variance = map(to_numpy, (norm.moving_mean, norm.moving_variance))
    return mean.astype("float64"), variance.astype("float64")


def _accuracies(logs: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    for name in logs:
        if name.endswith(("accuracy", "acc")) and f"val_{name}" in logs:
            yield name, float(logs[name]), float(logs[f"val_{name}"])


def _is_worse(logs: Mapping[str, Any]) -> bool:
    drops = [training - validation for _, training, validation in _accuracies(logs)]
    return not drops or max(drops) >= _LEAST_ACCURACY_DROP


def _lag_text(lags: Mapping[str, tuple[float, float]], logs: Mapping[str, Any]) -> str:
    losses = ("loss", float(logs["loss"]), float(logs["val_loss"]))
    figures = ", ".join(
        f"{name} {training:.3g}, val_{name} {validation:.3g}"
        for name, training, validation in (losses, *_accuracies(logs))
    )
    worst = max(lags, key=lambda layer: max(lags[layer][0], math.log(lags[layer][1])))
    gap, ratio = lags[worst]
    return (
        f"Validation is far from training: {figures}. Probable cause: the moving "
        f"statistics of BatchNormalization lag, in {layer_words(lags, [*lags])}. In "
        f"{worst}, the moving mean differs by {gap:.2g} standard deviations from the "
        f"batch mean, and the variance by a factor of {ratio:.2g}. Next: use a lower "
        "momentum such as 0.9, more batches per epoch, or km.ReestimateBatchNorm() "
        "after the training."
    )
