"""The shape that all losses share: a frozen choice of what is compared, and how."""

import abc
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar

from kerasmem.compression.distill.schedules import Schedule, lowest, schedule_from_json
from kerasmem.compression.fields import check_fields, is_number
from kerasmem.errors import ConfigError
from kerasmem.graph.outputs import Task

Number = float | Schedule
Layers = str | tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DistillationLoss(abc.ABC):
    """How far a student is from its teacher, in one respect.

    Args:
        weight: what its value is multiplied with, from 0: a number or a schedule.

    Raises:
        ConfigError: if a value is out of its range.
    """

    _: KW_ONLY
    weight: Number = 1.0

    name: ClassVar[str]
    scheduled: ClassVar[tuple[str, ...]] = ("weight",)

    def __post_init__(self) -> None:
        check_fields(self)
        for field in self.scheduled:
            value = getattr(self, field)
            if isinstance(value, dict):
                object.__setattr__(self, field, schedule_from_json(value))
            elif not isinstance(value, Schedule):
                self._check_number(field)
        if lowest(self.weight) < 0:
            raise ConfigError(
                f"The weight of {type(self).__name__} is at least 0. "
                f"Received: weight={self.weight!r}."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `loss_from_json` reads it back."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"loss": self.name, **{k: _plain(v) for k, v in plain.items()}}

    def _check_number(self, field: str, above: float | None = None) -> None:
        value = getattr(self, field)
        if is_number(value) and (above is None or value > above):
            return
        wanted = "a number" if above is None else f"a number above {above:g}"
        raise ConfigError(
            f"The {field} of {type(self).__name__} must be {wanted}. "
            f"Received: {field}={value!r}."
        )


@dataclass(frozen=True)
class Answers:
    """One output of teacher and student for a batch.

    Args:
        task: what the output is for; decides what its numbers are.
        teacher: float32; logits of classes along the last axis for CATEGORICAL, logits
            of yes or no for BINARY, values for REGRESSION.
        student: likewise, of the same shape.
        temperature: T, above 0.
        labels: as the data has them, or None.
    """

    task: Task
    teacher: Any
    student: Any
    temperature: Any
    labels: Any = None


@dataclass(frozen=True)
class OutputLoss(DistillationLoss):
    """A distance between what two models answer.

    Args:
        temperature: T, above 0: a number or a schedule. Answers are softened by it.
    """

    _: KW_ONLY
    temperature: Number = 4.0

    scheduled: ClassVar[tuple[str, ...]] = ("weight", "temperature")
    tasks: ClassVar[tuple[Task, ...]] = (Task.CATEGORICAL,)
    needs_labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, (Schedule, dict)) and not (
            is_number(self.temperature) and self.temperature > 0
        ):
            raise _bad_temperature(self.temperature)
        super().__post_init__()
        if lowest(self.temperature) <= 0:
            raise _bad_temperature(self.temperature)

    @abc.abstractmethod
    def distances(self, answers: Answers) -> Any:
        """Return one value for every entry of the output but its last axis."""


@dataclass(frozen=True)
class FeatureLoss(DistillationLoss):
    """A distance between what layers inside of two models give.

    Args:
        layers: which layers are compared. `"auto"`: by shape and depth; `"last"`: the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression (the layers that it means are paired in order), and end in
            `":1"` for the second tensor that the layer returns. A single text means
            layers of the same name in both.
    """

    _: KW_ONLY
    layers: Layers = "auto"

    heads: ClassVar[str] = "none"
    """Whose features a trained projection maps: `"none"`, `"student"`, `"both"`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers not in ("auto", "last"):
            object.__setattr__(self, "layers", _pairs(self.layers))

    @abc.abstractmethod
    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample, of two float32 features of a batch."""

    def mismatch(
        self, teacher: tuple[Any, ...], student: tuple[Any, ...]
    ) -> str | None:
        """Return why features of these shapes cannot be compared, or None.

        The shapes are without batch axis, channels last.
        """
        del teacher, student
        return None

    def width(self, teacher: tuple[Any, ...]) -> int:
        """Return the width of a projection onto a teacher's feature of this shape."""
        return teacher[-1]


def _pairs(layers: Any) -> tuple[tuple[str, str], ...]:
    given = [layers] if isinstance(layers, str) else layers
    items = list(given.items()) if isinstance(given, dict) else list(given or ())
    pairs = [(item, item) if isinstance(item, str) else tuple(item) for item in items]
    if not pairs or any(
        len(pair) != 2 or not all(isinstance(name, str) for name in pair)
        for pair in pairs
    ):
        raise ConfigError(
            "The layers of a loss are 'auto', 'last', or pairs of a name in the "
            f"teacher and a name in the student. Received: layers={layers!r}."
        )
    return tuple((teacher, student) for teacher, student in pairs)


def _bad_temperature(value: Any) -> ConfigError:
    return ConfigError(
        "The temperature must be a number above 0. Received: "
        f"temperature={value!r}. Next: 2 to 8 suits most classifiers."
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_json()
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
