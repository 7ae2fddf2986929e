"""Pruning schedules, including conversion from tfmot.

Positions in the training are fractions (0 to 1), values of `optimizer.iterations`, or
epochs.

Sources: Zhu and Gupta, "To prune, or not to prune: exploring the efficacy of pruning
for model compression", 2017 (the cubic rise); Evci, Gale, Menick, Castro and Elsen,
"Rigging the Lottery: Making All Tickets Winners", 2020 (RigL); Guo, Yao and Chen,
"Dynamic Network Surgery for Efficient DNNs", 2016 (splicing).
"""

import abc
import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

from kerasmem.checks import Real, Whole, invalid
from kerasmem.compression.fields import Config, from_tagged
from kerasmem.errors import ConfigError

UNITS = ("share", "step", "epoch")
_SPARSITY = Real("the fraction of weights to set to zero,", least=0, below=1)
_UPDATES = 50  # pruning steps if `every` is None
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Schedule(Config, abc.ABC):
    """Base class of pruning schedules.

    Args:
        begin: Position of the first pruning step, at least 0. Defaults to 0.
        end: Position of the last pruning step, at least `begin`, or None for no limit.
            Defaults to 0.5.
        every: Interval between pruning steps. Defaults to 50 steps between `begin` and
            `end`.
        unit: Unit of positions: `"share"` (fraction of the training), `"step"` (value
            of `optimizer.iterations`) or `"epoch"`. Defaults to `"share"`.

    Raises:
        ConfigError: If a value is out of range.
    """

    _: KW_ONLY
    begin: Annotated[float, Real()] = 0.0
    end: Annotated[float, Real()] | None = 0.5
    every: Annotated[float, Real(above=0)] | None = None
    unit: Annotated[str, UNITS] = "share"

    tag: ClassVar[str] = "schedule"
    regrowth: ClassVar[str | None] = None
    """How removed weights can return: None, `"gradient"` or `"splicing"`."""

    rises: ClassVar[bool] = False
    """Whether the sparsity grows from `begin` to `end`, so that `end` is required."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rises and self.end is None:
            raise ConfigError(
                f"A {self.name} schedule needs an end. Received: end=None."
            )
        numbers = (self.begin, *(() if self.end is None else (self.end,)))
        most = 1 if self.unit == "share" else math.inf
        if not 0 <= self.begin <= numbers[-1] <= most:
            raise ConfigError(
                "Expected positions of pruning with "
                f"0 <= begin <= end{' <= 1' if most == 1 else ''}. "
                f"Received: begin={self.begin!r}, end={self.end!r}."
            )

    @abc.abstractmethod
    def rise(self, progress: float, final: float) -> float:
        """Returns the sparsity between `begin` and `end`.

        Args:
            progress: Float in [0, 1]. 0 is `begin`, 1 is `end`.
            final: Float in [0, 1). Sparsity at `end`.
        """

    def sparsity(self, place: float, final: float) -> float:
        """Returns the sparsity at a position.

        Args:
            place: Position in the training, in units of `unit`.
            final: Float in [0, 1). Sparsity at `end`.
        """
        span = 0.0 if self.end is None else self.end - self.begin
        behind = place - self.begin
        progress = behind / span if span else float(behind >= 0)
        return self.rise(min(max(progress, 0.0), 1.0), final)

    def latest(self, place: float) -> float | None:
        """Returns the position of the latest pruning step up to `place`, or None."""
        if place < self.begin:
            return None
        if self.end is not None and place >= self.end:
            return self.end
        spacing = self.spacing
        if spacing is None:
            return self.begin
        turns = math.floor((place - self.begin) / spacing + _ROUNDING)
        return self.begin + turns * spacing

    def due(self, after: float | None, place: float) -> float | None:
        """Returns the position of a pending pruning step.

        Args:
            after: Position of the previous pruning step, or None.
            place: Current position in the training.

        Returns:
            The latest position after `after` and up to `place`, or None.
        """
        latest = self.latest(place)
        if latest is None or (after is not None and latest <= after):
            return None
        return latest

    @property
    def spacing(self) -> float | None:
        """Returns the interval between pruning steps, or None for a single step."""
        if self.every is not None or self.end is None or self.end == self.begin:
            return self.every
        spacing = (self.end - self.begin) / _UPDATES
        return max(spacing, 1.0) if self.unit == "step" else spacing


@dataclass(frozen=True)
class Constant(Schedule):
    """One-shot pruning at `begin`. `end` and `every` have no effect on the sparsity.

    Example:
        >>> Constant(begin=2, unit="epoch").sparsity(3, 0.8)
        0.8
    """

    _: KW_ONLY
    end: Annotated[float, Real()] | None = None
    name: ClassVar[str] = "constant"

    def rise(self, progress: float, final: float) -> float:  # noqa: ARG002
        """Returns the final sparsity."""
        return final


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Polynomial rise, fast at first; by default the cubic rise of Zhu and Gupta.

    Args:
        initial: Float in [0, 1). Sparsity at `begin`. Defaults to 0.
        power: Float above 0. 1 is a linear rise; higher powers rise faster at first.
            Defaults to 3.

    Example:
        >>> schedule = Polynomial(begin=100, end=110, initial=0.2, unit="step")
        >>> [round(schedule.sparsity(s, 0.8), 4) for s in (100, 102, 105, 110)]
        [0.2, 0.4928, 0.725, 0.8]
    """

    _: KW_ONLY
    initial: Annotated[float, _SPARSITY] = 0.0
    power: Annotated[float, Real(above=0)] = 3.0
    name: ClassVar[str] = "polynomial"
    rises: ClassVar[bool] = True

    def rise(self, progress: float, final: float) -> float:
        """Returns the sparsity at `progress`."""
        return final + (self.initial - final) * (1.0 - progress) ** self.power


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine wave: slow at the beginning and at the end.

    Args:
        initial: Float in [0, 1). Sparsity at `begin`. Defaults to 0.

    Example:
        >>> round(Cosine(begin=0, end=1).sparsity(0.5, 0.8), 6)
        0.4
    """

    _: KW_ONLY
    initial: Annotated[float, _SPARSITY] = 0.0
    name: ClassVar[str] = "cosine"
    rises: ClassVar[bool] = True

    def rise(self, progress: float, final: float) -> float:
        """Returns the sparsity at `progress`."""
        return final + (self.initial - final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Iterative(Schedule):
    """Rounds of pruning and training. Each removes the same fraction of the rest.

    Args:
        rounds: Integer, at least 1. Number of pruning steps, from `begin` to `end`.
            Defaults to 5.

    Example:
        >>> schedule = Iterative(rounds=3)
        >>> [round(schedule.sparsity(s, 0.488), 3) for s in (0, 0.25, 0.5)]
        [0.2, 0.36, 0.488]
    """

    _: KW_ONLY
    rounds: Annotated[int, Whole(1)] = 5
    name: ClassVar[str] = "iterative"
    rises: ClassVar[bool] = True

    @property
    def spacing(self) -> float | None:
        """Returns the interval between rounds."""
        span = 0.0 if self.end is None else self.end - self.begin
        return span / (self.rounds - 1) if self.rounds > 1 and span else None

    def rise(self, progress: float, final: float) -> float:
        """Returns the sparsity after the round at `progress`."""
        round_number = math.floor(progress * (self.rounds - 1) + _ROUNDING) + 1
        if round_number == self.rounds:
            return final
        return 1 - (1 - final) ** (round_number / self.rounds)


@dataclass(frozen=True)
class RigL(Schedule):
    """Sparse training with a constant sparsity from `begin` on.

    Each update removes the smallest weights. The same number of removed weights with
    the largest gradients returns, with value zero. The exchanged fraction falls from
    `fraction` to zero at `end`, along half a cosine wave.

    Args:
        fraction: Float in [0, 1). Fraction of the remaining weights to exchange at
            `begin`. Defaults to 0.3.

    Example:
        >>> RigL(end=0.75).sparsity(0.1, 0.9)
        0.9
    """

    _: KW_ONLY
    end: Annotated[float, Real()] | None = 0.75
    fraction: Annotated[float, _SPARSITY] = 0.3
    name: ClassVar[str] = "rigl"
    regrowth: ClassVar[str | None] = "gradient"

    def rise(self, progress: float, final: float) -> float:  # noqa: ARG002
        """Returns the final sparsity."""
        return final

    def exchanged(self, place: float) -> float:
        """Returns the fraction of the remaining weights to exchange at `place`."""
        span = 0.0 if self.end is None else self.end - self.begin
        progress = min(max((place - self.begin) / span, 0.0), 1.0) if span else 0.0
        return self.fraction / 2 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Splicing(Polynomial):
    """Polynomial rise during which removed weights keep training and can return.

    Each update ranks all weights. Removed weights are ranked by the value they would
    have without pruning. Training needs an extra float32 per weight.
    """

    _: KW_ONLY
    end: Annotated[float, Real()] | None = 0.75
    name: ClassVar[str] = "splicing"
    regrowth: ClassVar[str | None] = "splicing"


SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (Constant, Polynomial, Cosine, Iterative, RigL, Splicing)
}

_TFMOT = "tensorflow_model_optimization."
_KINDS = ("ConstantSparsity", "PolynomialDecay")


def as_schedule(schedule: Any) -> Schedule:
    """Converts plain data or a tfmot schedule to a `Schedule`."""
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, dict):
        return schedule_from_json(schedule)
    kind = type(schedule)
    if kind.__module__.startswith(_TFMOT) and kind.__name__ in _KINDS:
        return _from_tfmot(schedule)
    valid = (
        "a schedule of kerasmem, or a ConstantSparsity or PolynomialDecay of "
        "tensorflow_model_optimization"
    )
    raise invalid("Prune", "schedule", schedule, valid)


def schedule_from_json(config: dict[str, Any]) -> Schedule:
    """Returns the schedule described by the output of `Schedule.to_json`.

    Example:
        >>> schedule_from_json({"schedule": "constant", "begin": 0.25}).begin
        0.25
    """
    return from_tagged(SCHEDULES, config, "schedule")


def _from_tfmot(schedule: Any) -> Schedule:
    arguments = schedule.get_config()["config"]
    places = {
        "begin": arguments["begin_step"],
        "end": None if arguments["end_step"] == -1 else arguments["end_step"],
        "every": arguments["frequency"],
        "unit": "step",
    }
    if type(schedule).__name__ == "ConstantSparsity":
        return Constant(**places)
    initial, power = arguments["initial_sparsity"], arguments["power"]
    return Polynomial(**places, initial=initial, power=power)


def final_sparsity(schedule: Any) -> float | None:
    """Returns the final sparsity of a tfmot schedule, or None if unknown."""
    if isinstance(schedule, Schedule | dict) or not hasattr(schedule, "get_config"):
        return None
    config = schedule.get_config().get("config", {})
    return config.get("final_sparsity", config.get("target_sparsity"))
