"""Comparison of the metrics of the original and the compressed model."""

import math
import re
from collections.abc import Mapping

import keras
import numpy as np

from kerasmem.checks import Real
from kerasmem.errors import ConfigError, TargetError
from kerasmem.files.data import is_array_data, sample_count
from kerasmem.files.data.forms import first_samples
from kerasmem.graph.outputs import OutputTask, losses_of, task_of
from kerasmem.records import CompressionReport
from kerasmem.types import Dataset, Model

_NEEDS = (
    "max_drop needs labeled samples (validation_data, --data) and a model with a loss "
    "or metrics (loss=, --loss)."
)
_BETTER_IF_HIGHER = re.compile(
    r"acc|auc|precision|recall|f1|io_?u|r2|score|similarity|correlation|sensitivity"
    r"|specificity|true_"
)
_ACCURACY = re.compile(r"(?!.*top)(\w+_)?acc(uracy)?(_\d+)?")
_BETTER_IF_LOWER = re.compile(
    r"(loss|error|mae|mape|mse|msle|rmse|hinge|entropy|divergence|poisson|logcosh)"
    r"(_\d+)?$"
)
"""Matches the end of a name, because an output name such as `score` can precede it."""


def lacks_labels(data: Dataset) -> bool:
    """Returns whether samples in arrays have no labels."""
    return sample_count(data) is not None and first_samples(data).get("y") is None


def check_max_drop(max_drop: float | None, validation_data: Dataset) -> None:
    """Raises `ConfigError` if `max_drop` is negative or lacks validation data."""
    if max_drop is None:
        return
    if max_drop != math.inf:
        Real(least=0).check("compress", "max_drop", max_drop)
    if validation_data is None:
        raise ConfigError(
            f"{_NEEDS} Received: max_drop={max_drop}, validation_data=None. Next: give "
            "validation_data=(x, y), other samples than data."
        )


def check_metric(model: Model) -> None:
    """Raises `ConfigError` if the loss is the only metric and has weight penalties.

    Such a loss is not comparable, because a smaller model has a smaller penalty.
    """
    names = [metric.name for metric in model.metrics]
    if not names or not all(name.endswith("loss") for name in names):
        return
    paths = [v.path for v in model.trainable_variables if v.regularizer is not None]
    if paths:
        raise ConfigError(
            f"The loss of the model {model.name!r} includes weight penalties, which "
            "decrease when weights are removed, so the loss of a worse model can be "
            "lower. Received: no metrics, and a regularizer on "
            f"{paths[0]!r}. Next: give metrics= (--metric on the command line)."
        )


def check_drop(
    report: CompressionReport, max_drop: float | None, *, is_trainable: bool
) -> None:
    """Raises an error if the first metric dropped by more than `max_drop`.

    `is_trainable` is whether fine-tuning can follow one of the steps.

    Raises:
        TargetError: If the drop is larger. `None` allows any drop.
        ConfigError: If no metric was measured.
    """
    if max_drop is None:
        return
    if not report.before.metrics:
        raise ConfigError(f"{_NEEDS} Received: max_drop={max_drop}.")
    name = first_metric(report.before.metrics)
    before, after = report.before.metrics[name], report.after.metrics[name]
    drop = drop_of(report)
    # A NaN metric must count as a drop.
    if not drop <= max_drop:
        raise TargetError(
            f"{name} changed from {before:.4f} to {after:.4f}, which exceeds "
            f"max_drop={max_drop}. Next: compress less"
            f"{', fine-tune longer' * is_trainable}, or increase max_drop."
        )


def drop_of(report: CompressionReport) -> float:
    """Returns the drop of the first metric; negative for an improvement."""
    name = first_metric(report.before.metrics)
    before, after = report.before.metrics[name], report.after.metrics[name]
    return before - after if is_better_if_higher(name) else after - before


def far_worse(
    before: Mapping[str, float], after: Mapping[str, float], chance: float | None
) -> str | None:
    """Returns a warning about a much worse metric, or `None`.

    Accuracy is much worse if it lost more than half of its margin above chance. Loss is
    much worse if it more than doubled. Metrics of only one model are ignored.

    Example:
        >>> far_worse({"loss": 0.4}, {"loss": 1.0}, None)
        'far worse: loss 0.4 to 1, more than twice as much'
    """
    for name, old in before.items():
        if name not in after:
            continue
        new = after[name]
        # NaN must count as far worse.
        if chance is not None and _ACCURACY.fullmatch(name) and old > chance:
            if not new >= (old + chance) / 2:
                return (
                    f"far worse: {name} {old:.4f} to {new:.4f}, more than half of the "
                    f"way to chance, {chance:.4f}"
                )
        elif name == "loss" and old > 0 and not new <= 2 * old:
            return f"far worse: loss {old:.4g} to {new:.4g}, more than twice as much"
    return None


def chance_of(model: Model, data: Dataset) -> float | None:
    """Returns the accuracy of a constant guess, or `None` if unknown.

    This is the frequency of the most frequent class in array labels, and at least
    one divided by the number of classes.
    """
    outputs = getattr(model, "outputs", None) or ()
    if data is None or len(outputs) != 1 or not model.compiled:
        return None
    width = outputs[0].shape[-1]
    task = task_of(losses_of(model)[0])
    if task not in (OutputTask.CATEGORICAL, OutputTask.BINARY) or not width:
        return None
    labels = first_samples(data).get("y") if is_array_data(data) else None
    share = 1 / max(width, 2)
    if not hasattr(labels, "shape"):
        return share
    labels = keras.ops.convert_to_numpy(labels)
    if width > 1 and labels.shape[1:] == tuple(outputs[0].shape[1:]):
        if task is OutputTask.BINARY:
            return None  # multi-label targets have no single most frequent class
        labels = labels.argmax(-1)
    _, counts = np.unique(labels, return_counts=True)
    return max(share, float(counts.max() / labels.size))


def in_order(model: Model, metrics: Mapping[str, float]) -> dict[str, float]:
    """Sorts metrics as in `compile`, with losses last; Keras sorts alphabetically.

    A metric with a value per class becomes the mean of its values.

    `model` must be the model that was just evaluated.
    """
    results = [(metric.name, metric.result()) for metric in model.metrics]
    names = [
        each
        for name, value in results
        for each in (value if isinstance(value, dict) else [name])
    ]
    names = sorted([*names, *metrics], key=lambda name: name.endswith("loss"))
    return {name: float(np.mean(metrics[name])) for name in names if name in metrics}


def first_metric(metrics: Mapping[str, float]) -> str:
    """Returns the name of the first metric, or of the loss if there is no metric."""
    names = [name for name in metrics if not name.endswith("loss")]
    return next(iter([*names, *metrics]))


def is_better_if_higher(name: str) -> bool:
    """Returns `True` for metrics such as accuracy, `False` for errors and losses."""
    name = name.lower()
    is_lower = _BETTER_IF_LOWER.search(name) is not None
    return not is_lower and _BETTER_IF_HIGHER.search(name) is not None
