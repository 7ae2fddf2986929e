"""The forms in which a schedule comes: our own, plain data, one of tfmot's."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from kerasmem.compression.fields import from_tagged
from kerasmem.compression.prune.schedules import (
    Constant,
    Cosine,
    Iterative,
    Polynomial,
    RigL,
    Schedule,
    Splicing,
)
from kerasmem.errors import ConfigError

SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (Constant, Polynomial, Cosine, Iterative, RigL, Splicing)
}

_TFMOT = "tensorflow_model_optimization."


@dataclass(frozen=True)
class Borrowed(Schedule):
    """A schedule object of tfmot's shape: called with a step, it tells what to do.

    Args:
        schedule: called as `schedule(step) -> (should_prune, sparsity)`.
    """

    _: KW_ONLY
    schedule: Any = field(default=None)
    end: float | None = None
    every: float | None = 1
    unit: str = "step"
    name: ClassVar[str] = "borrowed"

    def latest(self, place: float) -> float | None:
        """Return the step, if the schedule prunes in it; None otherwise."""
        return place if bool(self.schedule(int(place))[0]) else None

    def due(self, after: float | None, place: float) -> float | None:
        """Return the last step behind `after`, up to here, in which it prunes."""
        first = int(place) if after is None else int(after) + 1
        steps = range(int(place), first - 1, -1)
        return next((s for s in steps if self.latest(s) is not None), None)

    def sparsity(self, place: float, final: float) -> float:  # noqa: ARG002
        """Return the sparsity that the schedule tells for a step."""
        return float(self.schedule(int(place))[1])

    def rise(self, progress: float, final: float) -> float:  # noqa: ARG002
        """Return the final sparsity: where it lies the schedule alone knows."""
        return final

    def to_json(self) -> dict[str, Any]:
        """Return what the schedule tells of itself."""
        return {"schedule": self.name, **self.schedule.get_config()}


def as_schedule(given: Any) -> Schedule:
    """Return a schedule of one, of its plain data, or of one of tfmot's.

    Raises:
        ConfigError: if it is none of these.
    """
    if isinstance(given, Schedule):
        return given
    if isinstance(given, dict):
        return schedule_from_json(given)
    if callable(given) and hasattr(given, "get_config"):
        return _from_tfmot(given)
    raise ConfigError(
        "A schedule is one of kerasmem.compression.prune, such as Polynomial(end=0.5), "
        "or an object of tensorflow_model_optimization. "
        f"Received: schedule={given!r}."
    )


def schedule_from_json(config: dict[str, Any]) -> Schedule:
    """Return the schedule that `Schedule.to_json` described.

    Raises:
        ConfigError: if it is none, or an argument is unknown.

    Example:
        >>> schedule_from_json({"schedule": "constant", "begin": 0.25}).begin
        0.25
    """
    what = "A schedule (a borrowed one has to be handed in itself)"
    return from_tagged(what, SCHEDULES, config, "schedule")


def _from_tfmot(schedule: Any) -> Schedule:
    kind = type(schedule)
    if not kind.__module__.startswith(_TFMOT):
        return Borrowed(schedule=schedule)
    arguments = schedule.get_config()["config"]
    places = {
        "begin": arguments["begin_step"],
        "end": None if arguments["end_step"] == -1 else arguments["end_step"],
        "every": arguments["frequency"],
        "unit": "step",
    }
    if kind.__name__ == "ConstantSparsity":
        return Constant(**places)
    initial, power = arguments["initial_sparsity"], arguments["power"]
    return Polynomial(**places, initial=initial, power=power)


def final_sparsity(schedule: Any) -> float | None:
    """Return the sparsity that a schedule of tfmot's ends at, None if unknown."""
    if isinstance(schedule, Schedule | dict) or not hasattr(schedule, "get_config"):
        return None
    config = schedule.get_config().get("config", {})
    return config.get("final_sparsity", config.get("target_sparsity"))
