"""Losses on teacher outputs: KL divergence, decoupled KL and correlation.

Sources: Geoffrey Hinton, Oriol Vinyals, Jeff Dean: Distilling the Knowledge in a Neural
Network, 2015 (`Logits`). Borui Zhao, Quan Cui, Renjie Song, Yiyu Qiu, Jiajun Liang:
Decoupled Knowledge Distillation, 2022 (`DKD`). Tao Huang, Shan You, Fei Wang, Chen
Qian, Chang Xu: Knowledge Distillation from a Stronger Teacher, 2022 (`DIST`).
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

from keras import ops

from kerasmem.checks import Real
from kerasmem.compression.distill.losses.base import (
    TEMPERATURE,
    Answers,
    Number,
    OutputLoss,
    one_hot,
)
from kerasmem.graph.outputs import OutputTask
from kerasmem.types import Model, Tensor


def categorical_divergence(teacher: Model, student: Model, temperature: Any) -> Any:
    """Returns T^2 KL(teacher || student) of class logits with shape (..., classes).

    The factor T^2 makes the gradient magnitude independent of the temperature T.
    """
    teacher, student = teacher / temperature, student / temperature
    log_ratio = ops.log_softmax(teacher) - ops.log_softmax(student)
    divergence = ops.sum(ops.softmax(teacher) * log_ratio, axis=-1)
    return temperature**2 * divergence


def binary_divergence(teacher: Model, student: Model, temperature: Any) -> Any:
    """Returns T^2 KL(teacher || student) of binary logits, mean of the last axis."""
    teacher, student = teacher / temperature, student / temperature
    yes = ops.log_sigmoid(teacher) - ops.log_sigmoid(student)
    no = ops.log_sigmoid(-teacher) - ops.log_sigmoid(-student)
    divergence = ops.sigmoid(teacher) * yes + ops.sigmoid(-teacher) * no
    return temperature**2 * ops.mean(divergence, axis=-1)


@dataclass(frozen=True)
class Logits(OutputLoss):
    """Knowledge distillation: KL divergence of softened outputs.

    The loss is T^2 KL(teacher || student) for categorical and binary outputs, and the
    mean squared error for regression outputs, which have no temperature.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015.

    Args:
        weight: Non-negative float, or a function of the step such as a
            `keras.optimizers.schedules.LearningRateSchedule`. Factor of the loss.
            Defaults to 1.
        temperature: Positive float, or a function of the step. Temperature T, which
            divides the logits. Defaults to 4.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> Logits(temperature=3.0).to_json()["temperature"]
        3.0
    """

    name: ClassVar[str] = "logits"
    tasks: ClassVar[tuple[OutputTask, ...]] = (
        OutputTask.CATEGORICAL,
        OutputTask.BINARY,
        OutputTask.REGRESSION,
    )

    def distances(self, answers: Answers) -> Any:
        """Returns the distance for every position of the output."""
        values = answers.teacher, answers.student
        if answers.task is OutputTask.REGRESSION:
            return ops.mean(ops.square(values[0] - values[1]), axis=-1)
        if answers.task is OutputTask.BINARY:
            return binary_divergence(*values, answers.temperature)
        return categorical_divergence(*values, answers.temperature)


_OUT = 1e4  # subtracted from the target logit, whose float32 probability becomes 0


def target_divergence(
    teacher: Model, student: Model, target: Any, temperature: Any
) -> Any:
    """Returns T^2 KL of the target class against all others (TCKD in the paper).

    `target` contains one-hot labels; all tensors have shape (..., classes).
    """
    teacher = _log_target_and_rest(teacher / temperature, target)
    student = _log_target_and_rest(student / temperature, target)
    terms = [
        ops.exp(of_teacher) * (of_teacher - of_student)
        for of_teacher, of_student in zip(teacher, student, strict=True)
    ]
    return temperature**2 * (terms[0] + terms[1])


def other_divergence(
    teacher: Model, student: Model, target: Any, temperature: Any
) -> Any:
    """Returns T^2 KL among the non-target classes (NCKD in the paper)."""
    out = _OUT * temperature * target
    return categorical_divergence(teacher - out, student - out, temperature)


@dataclass(frozen=True)
class DKD(OutputLoss):
    """Decoupled knowledge distillation: separate weights for target and other classes.

    Only for classifiers. Needs labels.

    Source: Zhao, Cui, Song, Qiu and Liang, "Decoupled Knowledge Distillation", 2022.

    Args:
        weight: Non-negative float, or a function of the step such as a
            `keras.optimizers.schedules.LearningRateSchedule`. Factor of the loss.
            Defaults to 1.
        temperature: Positive float, or a function of the step. Temperature T, which
            divides the logits. Defaults to 4.
        alpha: Float. Weight of the divergence of the target class (TCKD). Defaults to
            1.
        beta: Float. Weight of the divergence among the other classes (NCKD). The paper
            uses up to 8. Defaults to 8.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> DKD(beta=4.0).to_json()["beta"]
        4.0
    """

    _: KW_ONLY
    alpha: Annotated[float, Real()] = 1.0
    beta: Annotated[float, Real()] = 8.0

    name: ClassVar[str] = "dkd"
    needs_labels: ClassVar[bool] = True

    def distances(self, answers: Answers) -> Any:
        """Returns the distance per distribution."""
        target = one_hot(answers.labels, answers.student)
        values = answers.teacher, answers.student, target, answers.temperature
        right, others = target_divergence(*values), other_divergence(*values)
        return self.alpha * right + self.beta * others


def _log_target_and_rest(logits: Tensor, target: Any) -> tuple[Any, Any]:
    log_all = ops.log_softmax(logits)
    right = ops.sum(log_all * target, axis=-1)
    return right, ops.logsumexp(log_all - _OUT * target, axis=-1)


_TINY = 1e-8


def pearson_distance(a: Any, b: Any, axis: int) -> Any:
    """Returns 1 minus the Pearson correlation of two tensors along an axis."""
    a = a - ops.mean(a, axis=axis, keepdims=True)
    b = b - ops.mean(b, axis=axis, keepdims=True)
    squares = ops.sum(a * a, axis=axis) * ops.sum(b * b, axis=axis)
    return 1 - ops.sum(a * b, axis=axis) / ops.sqrt(ops.maximum(squares, _TINY**2))


@dataclass(frozen=True)
class DIST(OutputLoss):
    """Distillation by Pearson correlation between classes and between samples.

    The loss is T^2 (beta * inter-class distance + gamma * intra-class distance). Each
    distance is 1 minus the Pearson correlation. Only for classifiers.

    Source: Huang, You, Wang, Qian and Xu, "Knowledge Distillation from a Stronger
    Teacher", 2022.

    Args:
        weight: Non-negative float, or a function of the step such as a
            `keras.optimizers.schedules.LearningRateSchedule`. Factor of the loss.
            Defaults to 1.
        temperature: Positive float, or a function of the step. Temperature T, which
            divides the logits. Defaults to 1.
        beta: Float. Weight of the relation between the classes of a sample. Defaults
            to 1.
        gamma: Float. Weight of the relation between the samples of a class. Defaults
            to 1.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> DIST(gamma=2.0).to_json()["gamma"]
        2.0
    """

    _: KW_ONLY
    temperature: Annotated[Number, TEMPERATURE] = 1.0
    beta: Annotated[float, Real()] = 1.0
    gamma: Annotated[float, Real()] = 1.0

    name: ClassVar[str] = "dist"

    def distances(self, answers: Answers) -> Any:
        """Returns the distance per distribution, plus the mean distance of classes."""
        teacher = ops.softmax(answers.teacher / answers.temperature)
        student = ops.softmax(answers.student / answers.temperature)
        classes = answers.student.shape[-1]
        columns = [ops.reshape(p, (-1, classes)) for p in (teacher, student)]
        within_samples = pearson_distance(teacher, student, axis=-1)
        within_classes = ops.mean(pearson_distance(*columns, axis=0))
        relations = self.beta * within_samples + self.gamma * within_classes
        return answers.temperature**2 * relations
