"""Numbers that change while a student learns, once an epoch, as steps read them."""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import keras
import numpy as np

from kerasmem.checks import Real
from kerasmem.compression.fields import Config
from kerasmem.errors import ConfigError

if TYPE_CHECKING:
    from kerasmem.compression.distill.losses.base import DistillationLoss


@dataclass(frozen=True)
class Schedule(Config, abc.ABC):
    """A number that moves from `start` to `end` over a training.

    It is the same for all steps of an epoch: `start` in the first, `end` in the last.

    Args:
        start: its value up to `begin`.
        end: its value from `finish` on.
        begin: share of the training after which it moves, in [0, 1).
        finish: share of the training after which it has arrived, above `begin`.

    Raises:
        ConfigError: if a value is out of its range.
    """

    start: Annotated[float, Real()]
    end: Annotated[float, Real()]
    begin: Annotated[float, Real()] = 0.0
    finish: Annotated[float, Real()] = 1.0

    tag: ClassVar[str] = "schedule"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.begin < self.finish <= 1:
            raise ConfigError(
                "A schedule begins and finishes within the training: 0 <= begin < "
                f"finish <= 1. Received: begin={self.begin!r}, finish={self.finish!r}."
            )

    def value(self, progress: float) -> float:
        """Return the number at a share of the training.

        Args:
            progress: share of the training that is over, in [0, 1].

        Returns:
            A number between `start` and `end`.
        """
        done = (progress - self.begin) / (self.finish - self.begin)
        share = self._share(min(max(done, 0.0), 1.0))
        return self.start + (self.end - self.start) * share

    @abc.abstractmethod
    def _share(self, done: float) -> float:
        """Return how far the number has come when `done` of the way is over."""


@dataclass(frozen=True)
class Scheduled(Real):
    """The rule of a number, or of both ends of a schedule."""

    def check(self, owner: str, name: str, value: Any) -> Any:
        """Return the value, or raise `ConfigError`."""
        if not isinstance(value, Schedule):
            return super().check(owner, name, value)
        super().check(owner, name, value.start)
        super().check(owner, name, value.end)
        return value


@dataclass(frozen=True)
class Linear(Schedule):
    """A linear schedule of a weight or a temperature, by epoch.

    Args:
        start: the value up to `begin`.
        end: the value from `finish` on.
        begin: share of the training after which the value moves, in [0, 1).
        finish: share of the training after which it has arrived, above `begin`, at most
            1.

    Raises:
        ConfigError: if a value is out of its range.

    Example:
        >>> Linear(8.0, 2.0).value(0.5)
        5.0
    """

    name: ClassVar[str] = "linear"

    def _share(self, done: float) -> float:
        return done


@dataclass(frozen=True)
class Cosine(Schedule):
    """A cosine schedule: slow at both ends and fastest in the middle, by epoch.

    Args:
        start: the value up to `begin`.
        end: the value from `finish` on.
        begin: share of the training after which the value moves, in [0, 1).
        finish: share of the training after which it has arrived, above `begin`, at most
            1.

    Raises:
        ConfigError: if a value is out of its range.

    Example:
        >>> round(Cosine(1.0, 0.0).value(0.25), 4)
        0.8536
    """

    name: ClassVar[str] = "cosine"

    def _share(self, done: float) -> float:
        return (1 - math.cos(math.pi * done)) / 2


SCHEDULES: dict[str, type[Schedule]] = {"linear": Linear, "cosine": Cosine}


class ScheduledFactors(keras.layers.Layer):
    """Keeps what every schedule of some losses says in this epoch.

    What is no schedule stays a plain number, so that a step without any is as it would
    be without this.

    Args:
        losses: whose fields may be schedules.
    """

    def __init__(self, losses: Sequence["DistillationLoss"]) -> None:
        super().__init__(dtype="float32", autocast=False)
        self._schedules = [
            (loss, field, getattr(loss, field))
            for loss in losses
            for field in loss.scheduled
            if isinstance(getattr(loss, field), Schedule)
        ]
        self._values = None
        if self._schedules:
            shape = (len(self._schedules),)
            self._values = self.add_weight(
                shape=shape, trainable=False, name="scheduled_factors"
            )
            self.set_progress(0.0)
        self.built = True

    def set_progress(self, progress: float) -> None:
        """Set all to what they are at a share of the training, in [0, 1]."""
        if self._values is not None:
            now = [schedule.value(progress) for *_, schedule in self._schedules]
            self._values.assign(np.array(now, "float32"))

    def current(self, loss: "DistillationLoss", field: str) -> Any:
        """Return a field of a loss: a number, or a scalar tensor in this epoch."""
        for number, (owner, name, _) in enumerate(self._schedules):
            if owner is loss and name == field and self._values is not None:
                return self._values[number]
        return getattr(loss, field)


class FactorSchedule(keras.callbacks.Callback):
    """Sets the scheduled numbers at the start of every epoch.

    Args:
        factors: the scheduled numbers.
        epochs: number of epochs, counted from 0, after which training ends.
    """

    def __init__(self, factors: ScheduledFactors, epochs: int) -> None:
        super().__init__()
        self._factors = factors
        self._epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set every schedule to this epoch's value: the last epoch has its end."""
        del logs
        self._factors.set_progress(epoch / max(self._epochs - 1, 1))
