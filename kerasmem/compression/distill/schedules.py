"""Numbers that change while a student learns, once an epoch."""

import abc
import math
import sys
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from kerasmem.errors import ConfigError


@dataclass(frozen=True)
class Schedule(abc.ABC):
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

    start: float
    end: float
    begin: float = 0.0
    finish: float = 1.0

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field, value in asdict(self).items():
            if not is_number(value):
                raise ConfigError(
                    f"A schedule is made of numbers. Received: {field}={value!r}."
                )
        if not 0 <= self.begin < self.finish <= 1:
            raise ConfigError(
                "A schedule begins and finishes within the training: 0 <= begin < "
                f"finish <= 1. Received: begin={self.begin!r}, finish={self.finish!r}."
            )

    def value(self, progress: float) -> float:
        """Return the number at a share of the training, in [0, 1]."""
        done = (progress - self.begin) / (self.finish - self.begin)
        share = self._share(min(max(done, 0.0), 1.0))
        return self.start + (self.end - self.start) * share

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as plain data; `schedule_from_json` reads it back."""
        return {"schedule": self.name, **asdict(self)}

    @abc.abstractmethod
    def _share(self, done: float) -> float:
        """Return how far the number has come when `done` of the way is over."""


@dataclass(frozen=True)
class Linear(Schedule):
    """A number that moves by the same amount every epoch.

    Example:
        >>> Linear(8.0, 2.0).value(0.5)
        5.0
    """

    name: ClassVar[str] = "linear"

    def _share(self, done: float) -> float:
        return done


@dataclass(frozen=True)
class Cosine(Schedule):
    """A number that moves slowly at both ends and fastest in the middle.

    Example:
        >>> round(Cosine(1.0, 0.0).value(0.25), 4)
        0.8536
    """

    name: ClassVar[str] = "cosine"

    def _share(self, done: float) -> float:
        return (1 - math.cos(math.pi * done)) / 2


SCHEDULES: dict[str, type[Schedule]] = {"linear": Linear, "cosine": Cosine}


def schedule_from_json(config: dict[str, Any]) -> Schedule:
    """Return the schedule that `Schedule.to_json` told.

    Raises:
        ConfigError: if the schedule or one of its arguments is unknown.
    """
    arguments = dict(config)
    name = arguments.pop("schedule", None)
    if name not in SCHEDULES:
        raise ConfigError(
            f"A schedule is one of {', '.join(SCHEDULES)}. Received: schedule={name!r}."
        )
    try:
        return SCHEDULES[name](**arguments)
    except TypeError as error:
        raise ConfigError(f"Wrong arguments for {name!r}: {error}.") from error


def is_number(value: Any) -> bool:
    """Return True for a finite int or float that is no bool."""
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Compared, an int that is too long for a float is no error, and NaN is less.
    return is_real and abs(value) <= sys.float_info.max


def lowest(value: float | Schedule) -> float:
    """Return the smallest value of a number or a schedule."""
    return min(value.start, value.end) if isinstance(value, Schedule) else value
