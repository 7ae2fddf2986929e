"""Weights and temperatures that change with the step, as learning rates do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from kerasmem.checks import Real, invalid

if TYPE_CHECKING:
    from kerasmem.compression.distill.losses.base import DistillationLoss

A_FUNCTION = "<function "
"""How the plain data of a function begins that is no schedule of Keras."""
LearningRateSchedule = keras.optimizers.schedules.LearningRateSchedule
Number = float | Callable[[Any], Any]
"""A number, a Keras `LearningRateSchedule`, or any other function of the step."""


@dataclass(frozen=True)
class Scheduled(Real):
    """The rule of a number, or of the value of a schedule at step 0."""

    def check(self, owner: str, name: str, value: Any) -> Any:
        """Return the number or the schedule, or raise `ConfigError`."""
        schedule = self._deserialized(owner, name, value)
        if not callable(schedule):
            return super().check(owner, name, schedule)
        try:
            first = ops.convert_to_numpy(schedule(ops.zeros(())))
        except TypeError as error:
            valid = f"{self.what} or a function of the step"
            raise invalid(owner, name, value, valid) from error
        super().check(
            owner, f"{name} at step 0", first.item() if first.ndim == 0 else first
        )
        return schedule

    def _deserialized(self, owner: str, name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        valid = f"{self.what} or a serialized LearningRateSchedule of Keras"
        try:
            schedule = keras.optimizers.schedules.deserialize(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise invalid(owner, name, value, valid) from error
        if not isinstance(schedule, LearningRateSchedule):
            raise invalid(owner, name, value, valid)
        return schedule


def serialized(schedule: Callable[[Any], Any]) -> Any:
    """Return a schedule of Keras as plain data, and of another function its name."""
    if isinstance(schedule, LearningRateSchedule):
        return keras.optimizers.schedules.serialize(schedule)
    name = getattr(schedule, "__name__", type(schedule).__name__)
    return f"{A_FUNCTION}{name}>"


class ScheduledFactors(keras.layers.Layer):
    """Counts the batches of a training, for the scheduled fields of its losses.

    Args:
        losses: whose fields may be schedules.
    """

    def __init__(self, losses: Sequence["DistillationLoss"]) -> None:
        super().__init__(dtype="float32", autocast=False)
        self._step = None
        fields = [getattr(loss, field) for loss in losses for field in loss.scheduled]
        if any(map(callable, fields)):
            self._step = self.add_weight(
                shape=(),
                dtype="int",
                initializer="zeros",
                trainable=False,
                aggregation="only_first_replica",
                name="step",
            )
        self.built = True

    def advance(self) -> None:
        """Count one batch."""
        if self._step is not None:
            self._step.assign_add(1)

    def current(self, loss: "DistillationLoss", field: str) -> Any:
        """Return a field of a loss: a number, or a scalar tensor at this step."""
        value = getattr(loss, field)
        return value(ops.cast(self._step, "float32")) if callable(value) else value
