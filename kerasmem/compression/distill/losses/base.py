"""The shape that all losses share: a frozen choice of what is compared, and how."""

import abc
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

from keras import ops

from kerasmem.checks import invalid
from kerasmem.compression.distill.schedules import Number, Scheduled, serialized
from kerasmem.compression.fields import Config
from kerasmem.graph.outputs import OutputTask
from kerasmem.types import Model, Tensor

SMALLEST = 1e-12


def flat(features: Tensor) -> Any:
    """Return features as one vector per sample, (batch, entries)."""
    return ops.reshape(features, (ops.shape(features)[0], -1))


def unit(vectors: Tensor, axis: int = -1) -> Any:
    """Return vectors of length 1; one of length 0 stays as it is."""
    squares = ops.sum(ops.square(vectors), axis=axis, keepdims=True)
    return vectors / ops.sqrt(ops.maximum(squares, SMALLEST))


def products(vectors: Tensor) -> Any:
    """Return the dot product of every vector with every other, (batch, batch)."""
    return ops.matmul(vectors, ops.transpose(vectors))


def off_diagonal(vectors: Tensor) -> Any:
    """Return a (batch, batch) matrix of ones with zeros on its diagonal."""
    count = ops.shape(vectors)[0]
    numbers = ops.arange(count)
    same = ops.equal(ops.expand_dims(numbers, 0), ops.expand_dims(numbers, 1))
    return 1.0 - ops.cast(same, "float32")


def batch_size(vectors: Tensor) -> Any:
    """Return the number of samples, a float32 scalar."""
    return ops.cast(ops.shape(vectors)[0], "float32")


def huber(difference: Any) -> Any:
    """Return half the square of a difference up to 1, beyond it a line."""
    size = ops.abs(difference)
    return ops.where(size <= 1, 0.5 * ops.square(difference), size - 0.5)


def one_hot(labels: Tensor, logits: Tensor) -> Any:
    """Return labels as float32 of the shape of logits, (..., classes).

    Args:
        labels: classes as numbers, with or without a last axis of 1, or probabilities,
            of which the largest counts.
        logits: of all classes.
    """
    labels = ops.convert_to_tensor(labels)
    classes = logits.shape[-1]
    if labels.ndim == logits.ndim and labels.shape[-1] == classes:
        return ops.one_hot(ops.argmax(labels, axis=-1), classes, dtype="float32")
    if labels.ndim == logits.ndim:
        labels = ops.squeeze(labels, axis=-1)
    return ops.one_hot(ops.cast(labels, "int32"), classes, dtype="float32")


TEMPERATURE = Scheduled("a number, 2 to 8 for most classifiers,", above=0)
Layers = str | tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DistillationLoss(Config, abc.ABC):
    """How far a student is from its teacher, in one respect.

    Args:
        weight: factor of the loss, from 0: a number, a `LearningRateSchedule` of Keras,
            or any other function of the step.

    Raises:
        ConfigError: if a value is out of its range.
    """

    _: KW_ONLY
    weight: Annotated[Number, Scheduled(least=0)] = 1.0

    tag: ClassVar[str] = "loss"
    scheduled: ClassVar[tuple[str, ...]] = ("weight",)

    def to_json(self) -> dict[str, Any]:
        """Serialize the loss to plain data; `loss_from_json` reads it back.

        Returns:
            The name under `"loss"`, and each argument by its name. Only the name of a
            schedule that is no `LearningRateSchedule` is there, which is not read back.
        """
        values = {field: getattr(self, field) for field in self.scheduled}
        schedules = {name: v for name, v in values.items() if callable(v)}
        texts = {name: serialized(schedule) for name, schedule in schedules.items()}
        return super().to_json() | texts


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

    task: OutputTask
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
    temperature: Annotated[Number, TEMPERATURE] = 4.0

    scheduled: ClassVar[tuple[str, ...]] = ("weight", "temperature")
    tasks: ClassVar[tuple[OutputTask, ...]] = (OutputTask.CATEGORICAL,)
    needs_labels: ClassVar[bool] = False

    @abc.abstractmethod
    def distances(self, answers: Answers) -> Any:
        """Return one value for every entry of the output but its last axis.

        Args:
            answers: one output of teacher and student for a batch.

        Returns:
            A float32 tensor, (batch, ...).
        """


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
            self._set("layers", _pairs(self.layers))

    @abc.abstractmethod
    def distances(self, teacher: Model, student: Model) -> Any:
        """Return one value per sample, of two float32 features of a batch.

        Args:
            teacher: a float32 feature, (batch, ..., channels).
            student: likewise.

        Returns:
            A float32 tensor, (batch,).
        """

    def mismatch(
        self, teacher: tuple[Any, ...], student: tuple[Any, ...]
    ) -> str | None:
        """Return why features of these shapes cannot be compared, or None.

        Args:
            teacher: shape of the teacher's feature, without batch axis, channels last.
            student: likewise.

        Returns:
            The reason, in words; None if they can be compared.
        """
        del teacher, student
        return None

    def width(self, teacher: tuple[Any, ...]) -> int:
        """Return the width of a projection onto a teacher's feature of this shape.

        Args:
            teacher: shape of the teacher's feature, without batch axis, channels last.

        Returns:
            The number of channels, from 1.
        """
        return teacher[-1]


def _pairs(layers: Any) -> tuple[tuple[str, str], ...]:
    entries = [layers] if isinstance(layers, str) else layers
    items = list(entries.items()) if isinstance(entries, dict) else list(entries or ())
    pairs = [(item, item) if isinstance(item, str) else tuple(item) for item in items]
    if not pairs or any(
        len(pair) != 2 or not all(isinstance(name, str) for name in pair)
        for pair in pairs
    ):
        valid = "'auto', 'last', or pairs of a name in the teacher and the student"
        raise invalid("a loss", "layers", layers, valid)
    return tuple((teacher, student) for teacher, student in pairs)
