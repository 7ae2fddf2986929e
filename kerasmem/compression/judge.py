"""Whether a compressed model still does its job."""

from collections.abc import Mapping
from typing import Any

from kerasmem.errors import AccuracyDropError, ConfigError
from kerasmem.records import CompressionReport

_NEEDS = (
    "max_drop needs samples with labels to judge by (validation_data, --data) and a "
    "model with a loss or metrics (loss=, --loss)."
)
_BETTER_IF_HIGHER = ("acc", "auc", "precision", "recall", "f1", "iou", "r2", "score")


def check_max_drop(max_drop: float | None, validation_data: Any) -> None:
    """Raise before any work if `max_drop` cannot be judged.

    Raises:
        ConfigError: if it is negative, or there are no samples to judge by.
    """
    if max_drop is None:
        return
    if not max_drop >= 0:
        raise ConfigError(
            f"max_drop is a difference of 0 or more. Received: max_drop={max_drop}."
        )
    if validation_data is None:
        raise ConfigError(f"{_NEEDS} Received: max_drop={max_drop}.")


def check_drop(report: CompressionReport, max_drop: float | None) -> None:
    """Raise if the first metric got worse by more than `max_drop`.

    Args:
        report: figures before and after.
        max_drop: most that is allowed, as a difference; None allows anything.

    Raises:
        AccuracyDropError: if it got worse by more.
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
        raise AccuracyDropError(
            f"{name} went from {before:.4f} to {after:.4f}, which is worse than "
            f"max_drop={max_drop} allows. Prune less, or fine-tune longer."
        )


def drop_of(report: CompressionReport) -> float:
    """Return by how much the first metric got worse; below 0 if it got better."""
    name = first_metric(report.before.metrics)
    before, after = report.before.metrics[name], report.after.metrics[name]
    return before - after if is_better_if_higher(name) else after - before


def first_metric(metrics: Mapping[str, float]) -> str:
    """Return the name of the first metric, of the loss if there is no metric."""
    names = [name for name in metrics if not name.endswith("loss")]
    return next(iter([*names, *metrics]))


def is_better_if_higher(name: str) -> bool:
    """Return True for a metric like accuracy, False for one like an error."""
    return any(part in name.lower() for part in _BETTER_IF_HIGHER)
