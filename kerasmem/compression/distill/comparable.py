"""How far the answers of a student are from those of its teacher.

Geoffrey Hinton, Oriol Vinyals, Jeff Dean: Distilling the Knowledge in a Neural
Network, 2015.
"""

from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.outputs import Form, Output, Task
from kerasmem.errors import ModelError

_SMALLEST_PROBABILITY = 1e-30  # its reciprocal, a gradient, still fits a float32
_BINARY_MARGIN = 1e-7  # the nearest to 1 that float32 tells from 1


class CategoricalDivergence(keras.losses.Loss):
    """T^2 KL(teacher || student) over the classes of the last axis.

    Both distributions are softened by the temperature T; the factor T^2 keeps the
    size of the gradient the same for every T.

    Args:
        temperature: T, above 0.
        teacher: form of the teacher's output, SOFTMAX or LINEAR.
        student: form of the student's output.
    """

    def __init__(self, temperature: float, teacher: Form, student: Form) -> None:
        super().__init__(name="categorical_divergence", dtype="float32")
        self.temperature = temperature
        self.teacher = teacher
        self.student = student

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return one value per distribution: the teacher's answer comes first."""
        teacher = _class_logits(y_true, self.teacher) / self.temperature
        student = _class_logits(y_pred, self.student) / self.temperature
        log_ratio = ops.log_softmax(teacher) - ops.log_softmax(student)
        divergence = ops.sum(ops.softmax(teacher) * log_ratio, axis=-1)
        return self.temperature**2 * divergence


class BinaryDivergence(keras.losses.Loss):
    """T^2 KL(teacher || student) of independent yes-or-no answers, mean of last axis.

    Args:
        temperature: T, above 0.
        teacher: form of the teacher's output, SIGMOID or LINEAR.
        student: form of the student's output.
    """

    def __init__(self, temperature: float, teacher: Form, student: Form) -> None:
        super().__init__(name="binary_divergence", dtype="float32")
        self.temperature = temperature
        self.teacher = teacher
        self.student = student

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return one value per sample: the teacher's answer comes first."""
        teacher = _log_odds(y_true, self.teacher) / self.temperature
        student = _log_odds(y_pred, self.student) / self.temperature
        yes = ops.log_sigmoid(teacher) - ops.log_sigmoid(student)
        no = ops.log_sigmoid(-teacher) - ops.log_sigmoid(-student)
        divergence = ops.sigmoid(teacher) * yes + ops.sigmoid(-teacher) * no
        return self.temperature**2 * ops.mean(divergence, axis=-1)


def soft_loss(teacher: Output, student: Output, temperature: float) -> Any:
    """Return the `keras.losses.Loss` that compares one output of the two models.

    Probabilities and the logits of a classifier are compared as distributions;
    anything else by its mean squared error, which no temperature changes.

    Raises:
        ModelError: if the two outputs cannot mean the same.
    """
    task = _common_task(teacher, student)
    if task is Task.REGRESSION:
        return keras.losses.MeanSquaredError(dtype="float32")
    if teacher.form is Form.UNKNOWN or student.form is Form.UNKNOWN:
        who = "teacher" if teacher.form is Form.UNKNOWN else "student"
        raise ModelError(
            f"Neither the last layer nor a loss tells whether the {who} gives logits "
            f"or probabilities. Next: compile the {who} with the loss that it was "
            "trained with, from_logits=True or False."
        )
    divergence = CategoricalDivergence if task is Task.CATEGORICAL else BinaryDivergence
    return divergence(temperature, teacher.form, student.form)


def _common_task(teacher: Output, student: Output) -> Task:
    forms = {teacher.form, student.form}
    if forms >= {Form.SOFTMAX, Form.SIGMOID}:
        raise ModelError(
            "Teacher and student must answer the same question. Received: the "
            f"teacher's output is {teacher.form.value}, the student's is "
            f"{student.form.value}."
        )
    if Form.SOFTMAX in forms:
        return Task.CATEGORICAL
    if Form.SIGMOID in forms:
        return Task.BINARY
    known = [o.task for o in (student, teacher) if o.task is not Task.UNKNOWN]
    return known[0] if known else Task.REGRESSION


def _class_logits(values: Any, form: Form) -> Any:
    """Return logits; the logarithm of a softmax is as good as what went into it."""
    if form is Form.LINEAR:
        return values
    return ops.log(ops.maximum(values, _SMALLEST_PROBABILITY))


def _log_odds(values: Any, form: Form) -> Any:
    if form is Form.LINEAR:
        return values
    values = ops.clip(values, _BINARY_MARGIN, 1 - _BINARY_MARGIN)
    return ops.log(values) - ops.log1p(-values)
