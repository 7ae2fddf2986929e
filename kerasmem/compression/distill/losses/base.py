"""Base classes of distillation losses, and helpers on tensors."""

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
    """Returns one feature vector per sample, shape (batch, entries)."""
    return ops.reshape(features, (ops.shape(features)[0], -1))


def unit(vectors: Tensor, axis: int = -1) -> Any:
    """Returns vectors scaled to length 1. Zero vectors are unchanged."""
    squares = ops.sum(ops.square(vectors), axis=axis, keepdims=True)
    return vectors / ops.sqrt(ops.maximum(squares, SMALLEST))


def products(vectors: Tensor) -> Any:
    """Returns the dot products of all pairs of vectors, shape (batch, batch)."""
    return ops.matmul(vectors, ops.transpose(vectors))


def off_diagonal(vectors: Tensor) -> Any:
    """Returns a (batch, batch) matrix of ones with a zero diagonal."""
    count = ops.shape(vectors)[0]
    numbers = ops.arange(count)
    same = ops.equal(ops.expand_dims(numbers, 0), ops.expand_dims(numbers, 1))
    return 1.0 - ops.cast(same, "float32")


def batch_size(vectors: Tensor) -> Any:
    """Returns the number of samples as a float32 scalar."""
    return ops.cast(ops.shape(vectors)[0], "float32")


def huber(difference: Any) -> Any:
    """Returns the Huber loss with a threshold of 1."""
    size = ops.abs(difference)
    return ops.where(size <= 1, 0.5 * ops.square(difference), size - 0.5)


def one_hot(labels: Tensor, logits: Tensor) -> Any:
    """Returns one-hot float32 labels in the shape of the logits, (..., classes).

    `labels` are integers, with or without a last axis of 1, or probabilities.
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
    """A distance between a student and its teacher.

    Args:
        weight: Non-negative float, or a function of the step such as a
            `keras.optimizers.schedules.LearningRateSchedule`. Factor of the loss.
            Defaults to 1.

    Raises:
        ConfigError: If a value is out of range.
    """

    _: KW_ONLY
    weight: Annotated[Number, Scheduled(least=0)] = 1.0

    tag: ClassVar[str] = "loss"
    scheduled: ClassVar[tuple[str, ...]] = ("weight",)

    def to_json(self) -> dict[str, Any]:
        """Returns the loss as plain data, which `loss_from_json` reads.

        Returns:
            Dict with the name under `"loss"`, and each argument by its name. Functions
            other than a `LearningRateSchedule` are stored by name only and cannot be
            read back.
        """
        values = {field: getattr(self, field) for field in self.scheduled}
        schedules = {name: v for name, v in values.items() if callable(v)}
        texts = {name: serialized(schedule) for name, schedule in schedules.items()}
        return super().to_json() | texts


@dataclass(frozen=True)
class Answers:
    """One output of teacher and student for a batch.

    Args:
        task: Task of the output, which determines the meaning of its numbers.
        teacher: Float32 teacher output: class logits (CATEGORICAL), binary logits
            (BINARY) or values (REGRESSION).
        student: Float32 student output of the same form and shape.
        temperature: Positive temperature T.
        labels: Labels or `None`.
    """

    task: OutputTask
    teacher: Any
    student: Any
    temperature: Any
    labels: Any = None


@dataclass(frozen=True)
class OutputLoss(DistillationLoss):
    """A distance between the outputs of two models.

    Args:
        temperature: Positive float or schedule. Divides the logits. Defaults to 4.
    """

    _: KW_ONLY
    temperature: Annotated[Number, TEMPERATURE] = 4.0

    scheduled: ClassVar[tuple[str, ...]] = ("weight", "temperature")
    tasks: ClassVar[tuple[OutputTask, ...]] = (OutputTask.CATEGORICAL,)
    needs_labels: ClassVar[bool] = False

    @abc.abstractmethod
    def distances(self, answers: Answers) -> Any:
        """Returns the distance for every position of the output except its last axis.

        Args:
            answers: One output of teacher and student for a batch.

        Returns:
            A float32 tensor of shape (batch, ...).
        """


@dataclass(frozen=True)
class FeatureLoss(DistillationLoss):
    """A distance between features of inner layers of two models.

    Args:
        layers: Layers to compare. `"auto"` pairs layers by shape and depth. `"last"`
            pairs the last hidden layers. Otherwise, pairs of (teacher, student) names.
            A name can be a path through nested models (`"encoder/dense"`) or a regular
            expression, whose matches are paired in order. An ending such as `":1"`
            selects the second output tensor. A single string is used for both models.
    """

    _: KW_ONLY
    layers: Layers = "auto"

    projects: ClassVar[bool] = False
    """Whether a trained projection of the student's feature has the teacher's width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers not in ("auto", "last"):
            self._set("layers", _pairs(self.layers))

    @abc.abstractmethod
    def distances(self, teacher: Model, student: Model) -> Any:
        """Returns the distance of two features per sample.

        Args:
            teacher: Float32 tensor of shape (batch, ..., channels).
            student: Float32 tensor of shape (batch, ..., channels).

        Returns:
            A float32 tensor of shape (batch,).
        """

    def mismatch(
        self, teacher: tuple[Any, ...], student: tuple[Any, ...]
    ) -> str | None:
        """Returns why features of these shapes cannot be compared, or `None`.

        Args:
            teacher: Shape of the teacher feature, channels last, without batch axis.
            student: Shape of the student feature, channels last, without batch axis.

        Returns:
            The reason as text, or `None`.
        """
        del teacher, student
        return None


def _pairs(layers: Any) -> tuple[tuple[str, str], ...]:
    entries = [layers] if isinstance(layers, str) else layers
    items = list(entries.items()) if isinstance(entries, dict) else list(entries or ())
    pairs = [(item, item) if isinstance(item, str) else tuple(item) for item in items]
    if not pairs or any(
        len(pair) != 2 or not all(isinstance(name, str) for name in pair)
        for pair in pairs
    ):
        valid = "'auto', 'last', or pairs of a teacher and a student layer name"
        raise invalid("a loss", "layers", layers, valid)
    return tuple((teacher, student) for teacher, student in pairs)
