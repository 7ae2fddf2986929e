"""Loss and learning rate of an epoch, and what is usual."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.backends.gradients import innermost
from kerasmem.graph.values import to_numpy


@dataclass(frozen=True)
class LearningRate:
    """A learning rate, and what it is to be compared with.

    Args:
        value: the learning rate.
        optimizer: class name of the optimizer.
        usual: that class's default, None if it has none.
    """

    value: float
    optimizer: str
    usual: float | None


def learning_rate(optimizer: Any, updates_ago: Sequence[int]) -> LearningRate | None:
    """Return the highest learning rate of some updates; None if there is none.

    Args:
        optimizer: a Keras optimizer; one of several parts has none of its own.
        updates_ago: which updates, 1 for the latest; a schedule has a value for each.
    """
    optimizer = innermost(optimizer)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return None
    default = inspect.signature(type(optimizer)).parameters.get("learning_rate")
    usual = default.default if default else None
    value = max(_value(optimizer, ago) for ago in updates_ago)
    if not math.isfinite(value):
        return None
    return LearningRate(
        value=value,
        optimizer=type(optimizer).__name__,
        usual=usual if isinstance(usual, float) else None,
    )


def _value(optimizer: Any, updates_ago: int) -> float:
    # Private: in public an optimizer tells the value of the next step alone.
    schedule = optimizer._learning_rate
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return float(to_numpy(optimizer.learning_rate))
    batches = updates_ago * (optimizer.gradient_accumulation_steps or 1)
    return float(to_numpy(schedule(optimizer._iterations - batches)))


def epoch_losses(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Return those of `"loss"` and `"val_loss"` that are in `logs` and finite."""
    known = logs or {}
    losses = {
        name: float(known[name]) for name in ("loss", "val_loss") if name in known
    }
    return {name: value for name, value in losses.items() if math.isfinite(value)}
