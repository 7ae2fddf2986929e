"""Whether a compressed model still does its job."""

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
    "max_drop needs samples with labels to judge by (validation_data, --data) and a "
    "model with a loss or metrics (loss=, --loss)."
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
"""The end of a name; what is before may be the name of an output, such as `score`."""


def lacks_labels(data: Dataset) -> bool:
    """Return whether samples that can be looked at, such as arrays, have no labels."""
    return sample_count(data) is not None and first_samples(data).get("y") is None


def check_max_drop(max_drop: float | None, validation_data: Dataset) -> None:
    """Raise before any work if `max_drop` cannot be judged.

    Raises:
        ConfigError: if it is negative, or there are no samples to judge by.
    """
    if max_drop is None:
        return
    if max_drop != math.inf:
        Real(least=0).check("compress", "max_drop", max_drop)
    if validation_data is None:
        raise ConfigError(f"{_NEEDS} Received: max_drop={max_drop}.")


def check_metric(model: Model) -> None:
    """Raise if the first metric would tell nothing of how well a model does its job.

    Raises:
        ConfigError: if it is a loss with penalties on weights, which other weights do
            not have.
    """
    names = [metric.name for metric in model.metrics]
    if not names or not all(name.endswith("loss") for name in names):
        return
    paths = [v.path for v in model.trainable_variables if v.regularizer is not None]
    if paths:
        raise ConfigError(
            f"The loss of the model {model.name!r} holds penalties on weights, which "
            "fall as weights go: a model that does worse may have less of a loss. "
            "Next: give metrics=, such as the loss (--metric on the command line). "
            f"Received: no metrics, and a regularizer on {paths[0]!r}."
        )


def check_drop(report: CompressionReport, max_drop: float | None) -> None:
    """Raise if the first metric got worse by more than `max_drop`.

    Args:
        report: figures before and after.
        max_drop: most that is allowed, as a difference; None allows anything.

    Raises:
        TargetError: if it got worse by more.
        ConfigError: if no metric was measured.
    """
    if max_drop is None:
        return
    if not report.before.metrics:
        raise ConfigError(f"{_NEEDS} Received: max_drop={max_drop}.")
    name = first_metric(report.before.metrics)
    before, after = report.before.metrics[name], report.after.metrics[name]
    drop = drop_of(report)
    # Written so that a metric of NaN is a drop.
    if not drop <= max_drop:
        raise TargetError(
            f"{name} went from {before:.4f} to {after:.4f}, which is worse than "
            f"max_drop={max_drop} allows. Prune less, or fine-tune longer."
        )


def drop_of(report: CompressionReport) -> float:
    """Return by how much the first metric got worse; below 0 if it got better."""
    name = first_metric(report.before.metrics)
    before, after = report.before.metrics[name], report.after.metrics[name]
    return before - after if is_better_if_higher(name) else after - before


def far_worse(
    before: Mapping[str, float], after: Mapping[str, float], chance: float | None
) -> str | None:
    """Return what is far worse, None if nothing is.

    That is an accuracy that lost more than half of what it had above chance, or a loss
    that more than doubled.

    Args:
        before: metrics of one model by name.
        after: metrics of the other; what only one of them has is not compared.
        chance: accuracy of whoever guesses, see `chance_of`; None if unknown.

    Example:
        >>> far_worse({"loss": 0.4}, {"loss": 1.0}, None)
        'far worse: loss 0.4 to 1, more than twice as much'
    """
    for name, old in before.items():
        if name not in after:
            continue
        new = after[name]
        # Written so that NaN is far worse.
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
    """Return the accuracy of whoever always says the same class, None if unknown.

    It is the share of the most frequent class in labels that are in an array, and at
    least one over the number of classes.

    Args:
        model: a compiled model with a graph and one output.
        data: samples in any form that `kerasmem.files.data` lists, or None.
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
            return None  # any number of them may be true
        labels = labels.argmax(-1)
    _, counts = np.unique(labels, return_counts=True)
    return max(share, float(counts.max() / labels.size))


def in_order(model: Model, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics in the order of `compile`, then the loss, then those of outputs.

    Keras has them by the alphabet.

    Args:
        model: the model, which was evaluated just now.
        metrics: its metrics by name.
    """
    results = [(metric.name, metric.result()) for metric in model.metrics]
    names = [
        each
        for name, value in results
        for each in (value if isinstance(value, dict) else [name])
    ]
    names = sorted([*names, *metrics], key=lambda name: name.endswith("loss"))
    return {name: float(metrics[name]) for name in names if name in metrics}


def first_metric(metrics: Mapping[str, float]) -> str:
    """Return the name of the first metric, of the loss if there is no metric."""
    names = [name for name in metrics if not name.endswith("loss")]
    return next(iter([*names, *metrics]))


def is_better_if_higher(name: str) -> bool:
    """Return True for a metric like accuracy, False for one like an error."""
    name = name.lower()
    is_lower = _BETTER_IF_LOWER.search(name) is not None
    return not is_lower and _BETTER_IF_HIGHER.search(name) is not None
