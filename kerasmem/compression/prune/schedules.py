"""When pruning goes on in a training, and how far: the schedules, ours and tfmot's.

A place in a training is a share of it (0 to 1), a number of updates as
`optimizer.iterations` counts them, or a number of epochs.

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
_SPARSITY = Real("the share of weights that becomes zero,", least=0, below=1)
_UPDATES = 50  # where nothing else is asked for
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Schedule(Config, abc.ABC):
    """Pruning goes on from one place in the training to another.

    Args:
        begin: place of the first pruning, from 0.
        end: place of the last one, not before `begin`; None if there is no last.
        every: distance from one pruning to the next; None for 50 of them from `begin`
            to `end`.
        unit: what places are counted in: `"share"` of the training, `"step"` as
            `optimizer.iterations` counts them, or `"epoch"`.

    Raises:
        ConfigError: if a value is out of its range.
    """

    _: KW_ONLY
    begin: Annotated[float, Real()] = 0.0
    end: Annotated[float, Real()] | None = 0.5
    every: Annotated[float, Real(above=0)] | None = None
    unit: Annotated[str, UNITS] = "share"

    tag: ClassVar[str] = "schedule"
    regrowth: ClassVar[str | None] = None
    """What may bring weights back: None, `"gradient"` or `"splicing"`."""

    rises: ClassVar[bool] = False
    """Whether the sparsity grows from `begin` to `end`, which has to be given then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rises and self.end is None:
            raise ConfigError(
                f"A {self.name} schedule rises up to its end. Received: end=None."
            )
        numbers = (self.begin, *(() if self.end is None else (self.end,)))
        most = 1 if self.unit == "share" else math.inf
        if not 0 <= self.begin <= numbers[-1] <= most:
            raise ConfigError(
                "The begin and end of pruning are places in the training with "
                f"0 <= begin <= end{' <= 1' if most == 1 else ''}. "
                f"Received: begin={self.begin!r}, end={self.end!r}."
            )

    @abc.abstractmethod
    def rise(self, progress: float, final: float) -> float:
        """Return the sparsity at `progress` (0 to 1) from begin to end.

        Args:
            progress: share of the way from `begin` to `end`.
            final: sparsity at the end, in [0, 1).
        """

    def sparsity(self, place: float, final: float) -> float:
        """Return the sparsity that belongs to a place.

        Args:
            place: where in the training, counted in `unit`.
            final: sparsity at the end, in [0, 1).
        """
        span = 0.0 if self.end is None else self.end - self.begin
        behind = place - self.begin
        progress = behind / span if span else float(behind >= 0)
        return self.rise(min(max(progress, 0.0), 1.0), final)

    def latest(self, place: float) -> float | None:
        """Return the last place up to here at which pruning goes on, None before it."""
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
        """Return the last place behind `after`, up to here, at which to prune.

        Args:
            after: place of the last pruning, None if there was none yet.
            place: where the training is.

        Returns:
            The place, or None if nothing is due.
        """
        latest = self.latest(place)
        if latest is None or (after is not None and latest <= after):
            return None
        return latest

    @property
    def spacing(self) -> float | None:
        """Return the distance from one pruning to the next, None if there is one."""
        if self.every is not None or self.end is None or self.end == self.begin:
            return self.every
        spacing = (self.end - self.begin) / _UPDATES
        return max(spacing, 1.0) if self.unit == "step" else spacing


@dataclass(frozen=True)
class Constant(Schedule):
    """All at once (one-shot) at `begin`; `end` and `every` change nothing.

    Example:
        >>> Constant(begin=2, unit="epoch").sparsity(3, 0.8)
        0.8
    """

    _: KW_ONLY
    end: Annotated[float, Real()] | None = None
    name: ClassVar[str] = "constant"

    def rise(self, progress: float, final: float) -> float:  # noqa: ARG002
        """Return the final sparsity."""
        return final


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Fast at first, slow at the end: the cubic rise of Zhu and Gupta by default.

    Args:
        initial: sparsity at `begin`, in [0, 1).
        power: 1 for a straight line; the higher, the faster at first.

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
        """Return the sparsity at `progress`."""
        return final + (self.initial - final) * (1.0 - progress) ** self.power


@dataclass(frozen=True)
class Cosine(Schedule):
    """Slow at first and at the end, half a wave of a cosine.

    Args:
        initial: sparsity at `begin`, in [0, 1).

    Example:
        >>> round(Cosine(begin=0, end=1).sparsity(0.5, 0.8), 6)
        0.4
    """

    _: KW_ONLY
    initial: Annotated[float, _SPARSITY] = 0.0
    name: ClassVar[str] = "cosine"
    rises: ClassVar[bool] = True

    def rise(self, progress: float, final: float) -> float:
        """Return the sparsity at `progress`."""
        return final + (self.initial - final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Iterative(Schedule):
    """Rounds of pruning and training; each removes the same share of what is left.

    Args:
        rounds: number of prunings, from 1, the first at `begin`, the last at `end`.

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
        """Return the distance from one round to the next."""
        span = 0.0 if self.end is None else self.end - self.begin
        return span / (self.rounds - 1) if self.rounds > 1 and span else None

    def rise(self, progress: float, final: float) -> float:
        """Return the sparsity after the round that `progress` falls into."""
        round_number = math.floor(progress * (self.rounds - 1) + _ROUNDING) + 1
        if round_number == self.rounds:
            return final
        return 1 - (1 - final) ** (round_number / self.rounds)


@dataclass(frozen=True)
class RigL(Schedule):
    """Sparse from `begin` on; every so often the smallest weights change places.

    Those that leave are the smallest; those that come are where the gradient is
    largest, and start at zero. How many change falls from `fraction` to none at `end`,
    half a wave of a cosine.

    Args:
        fraction: share of the remaining weights that changes places at first, in
            [0, 1).

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
        """Return the final sparsity."""
        return final

    def exchanged(self, place: float) -> float:
        """Return the share of the remaining weights that changes places at `place`."""
        span = 0.0 if self.end is None else self.end - self.begin
        progress = min(max((place - self.begin) / span, 0.0), 1.0) if span else 0.0
        return self.fraction / 2 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Splicing(Polynomial):
    """A rise on which removed weights go on learning unseen, and may come back.

    At every pruning all weights are ranked anew, the removed ones by the value they
    would have by now. It takes a float32 per weight while training.
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
    """Return a schedule of one, of its plain data, or of one of tfmot's.

    Raises:
        ConfigError: if it is none of these.
    """
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
    """Return the schedule that `Schedule.to_json` described.

    Raises:
        ConfigError: if it is none, or an argument is unknown.

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
    """Return the sparsity that a schedule of tfmot's ends at, None if unknown."""
    if isinstance(schedule, Schedule | dict) or not hasattr(schedule, "get_config"):
        return None
    config = schedule.get_config().get("config", {})
    return config.get("final_sparsity", config.get("target_sparsity"))
