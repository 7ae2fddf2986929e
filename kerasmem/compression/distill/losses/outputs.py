"""Losses on the outputs of a teacher: logits, decoupled, by correlation.

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
    """Return T^2 KL(teacher || student) over the classes of the last axis.

    The factor T^2 keeps the size of the gradient the same for every T.

    Args:
        teacher: logits, (..., classes).
        student: likewise.
        temperature: T, above 0; both distributions are softened by it.
    """
    teacher, student = teacher / temperature, student / temperature
    log_ratio = ops.log_softmax(teacher) - ops.log_softmax(student)
    divergence = ops.sum(ops.softmax(teacher) * log_ratio, axis=-1)
    return temperature**2 * divergence


def binary_divergence(teacher: Model, student: Model, temperature: Any) -> Any:
    """Return T^2 KL(teacher || student) of yes-or-no answers, mean of the last axis."""
    teacher, student = teacher / temperature, student / temperature
    yes = ops.log_sigmoid(teacher) - ops.log_sigmoid(student)
    no = ops.log_sigmoid(-teacher) - ops.log_sigmoid(-student)
    divergence = ops.sigmoid(teacher) * yes + ops.sigmoid(-teacher) * no
    return temperature**2 * ops.mean(divergence, axis=-1)


@dataclass(frozen=True)
class Logits(OutputLoss):
    """Knowledge distillation: the KL divergence of softened outputs.

    The value is T^2 KL(teacher || student). Classes and yes-or-no outputs are compared
    by it. Values of a regression are compared by their mean squared error, which no
    temperature changes.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015.

    Args:
        weight: factor of the loss, from 0: a number, or a function of the step such as
            a `keras.optimizers.schedules.LearningRateSchedule`.
        temperature: T, which divides the logits, above 0: a number, or a function of
            the step, as for `weight`.

    Raises:
        ConfigError: if a value is out of its range.

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
        """Return one value for every entry of the output but its last axis."""
        values = answers.teacher, answers.student
        if answers.task is OutputTask.REGRESSION:
            return ops.mean(ops.square(values[0] - values[1]), axis=-1)
        if answers.task is OutputTask.BINARY:
            return binary_divergence(*values, answers.temperature)
        return categorical_divergence(*values, answers.temperature)


_OUT = 1e4  # taken off the right class's logit: its probability is 0 in float32


def target_divergence(
    teacher: Model, student: Model, target: Any, temperature: Any
) -> Any:
    """Return T^2 KL of right class against all the others (the paper's TCKD).

    Args:
        teacher: logits, (..., classes).
        student: likewise.
        target: one-hot labels, (..., classes).
        temperature: T, above 0.
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
    """Return T^2 KL of the classes but the right one among themselves (NCKD).

    Takes what `target_divergence` does.
    """
    out = _OUT * temperature * target
    return categorical_divergence(teacher - out, student - out, temperature)


@dataclass(frozen=True)
class DKD(OutputLoss):
    """Decoupled knowledge distillation: target class and other classes weighted apart.

    It is for classifiers, and needs labels.

    Source: Zhao, Cui, Song, Qiu and Liang, "Decoupled Knowledge Distillation", 2022.

    Args:
        weight: factor of the loss, from 0: a number, or a function of the step such as
            a `keras.optimizers.schedules.LearningRateSchedule`.
        temperature: T, which divides the logits, above 0: a number, or a function of
            the step, as for `weight`.
        alpha: weight of the divergence in the target class (TCKD).
        beta: weight of the divergence among the other classes (NCKD); the paper takes
            up to 8.

    Raises:
        ConfigError: if a value is out of its range.

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
        """Return one value per distribution."""
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
    """Return 1 minus the correlation coefficient of two tensors along an axis."""
    a = a - ops.mean(a, axis=axis, keepdims=True)
    b = b - ops.mean(b, axis=axis, keepdims=True)
    squares = ops.sum(a * a, axis=axis) * ops.sum(b * b, axis=axis)
    return 1 - ops.sum(a * b, axis=axis) / ops.sqrt(ops.maximum(squares, _TINY**2))


@dataclass(frozen=True)
class DIST(OutputLoss):
    """Distillation by Pearson correlation of the classes and of the samples.

    The value is T^2 (beta * distance within samples + gamma * distance within classes),
    each distance 1 minus Pearson's coefficient. It is for classifiers.

    Source: Huang, You, Wang, Qian and Xu, "Knowledge Distillation from a Stronger
    Teacher", 2022.

    Args:
        weight: factor of the loss, from 0: a number, or a function of the step such as
            a `keras.optimizers.schedules.LearningRateSchedule`.
        temperature: T, which divides the logits, above 0: a number, or a function of
            the step, as for `weight`.
        beta: weight of the relation between the classes of a sample.
        gamma: weight of the relation between the samples of a class.

    Raises:
        ConfigError: if a value is out of its range.

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
        """Return one value per distribution; what is within classes is in each."""
        teacher = ops.softmax(answers.teacher / answers.temperature)
        student = ops.softmax(answers.student / answers.temperature)
        classes = answers.student.shape[-1]
        columns = [ops.reshape(p, (-1, classes)) for p in (teacher, student)]
        within_samples = pearson_distance(teacher, student, axis=-1)
        within_classes = ops.mean(pearson_distance(*columns, axis=0))
        relations = self.beta * within_samples + self.gamma * within_classes
        return answers.temperature**2 * relations
