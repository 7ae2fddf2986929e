"""Loss weights and temperatures that follow a schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from kerasmem.checks import Real, invalid

if TYPE_CHECKING:
    from kerasmem.compression.distill.losses.base import DistillationLoss

LearningRateSchedule = keras.optimizers.schedules.LearningRateSchedule
Number = float | Callable[[Any], Any]
"""A number, a Keras `LearningRateSchedule`, or another function of the step."""


@dataclass(frozen=True)
class Scheduled(Real):
    """Rule for a number or a schedule, whose value at step 0 is checked."""

    def check(self, owner: str, name: str, value: Any) -> Any:
        """Returns the number or the schedule, or raises `ConfigError`."""
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
    """Returns a Keras schedule as plain data, or the name of another function."""
    if isinstance(schedule, LearningRateSchedule):
        return keras.optimizers.schedules.serialize(schedule)
    name = getattr(schedule, "__name__", type(schedule).__name__)
    return f"<function {name}>"


class ScheduledFactors(keras.layers.Layer):
    """Counts training steps and evaluates scheduled arguments of losses."""

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
        """Counts one batch."""
        if self._step is not None:
            self._step.assign_add(1)

    def advance_to(self, step: int) -> None:
        """Counts at least `step` batches, as in a training that is resumed."""
        if self._step is not None and self._step < step:
            self._step.assign(step)

    def current(self, loss: "DistillationLoss", field: str) -> Any:
        """Returns an argument of a loss at this step: a number or a scalar tensor."""
        value = getattr(loss, field)
        return value(ops.cast(self._step, "float32")) if callable(value) else value


class ResumedSteps(keras.callbacks.Callback):
    """Continues the schedules in a training that does not start at epoch 0."""

    def __init__(self, factors: ScheduledFactors) -> None:
        super().__init__()
        self._factors = factors

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Counts the batches of earlier epochs, if their number is known."""
        del logs
        self._factors.advance_to(epoch * (self.params["steps"] or 0))
