"""One pair of layers that one loss compares, with what makes them comparable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.features import FeatureRef
from kerasmem.compression.distill.losses import FeatureLoss
from kerasmem.errors import ModelError
from kerasmem.graph.outputs import Form, Output, Task


class Comparison(keras.layers.Layer):
    """A loss on one feature of the teacher and one of the student.

    Its weights are the projections, which are trained along with the student and go
    when the distiller goes.

    Args:
        loss: what compares.
        refs: of the teacher and of the student.
        shapes: of their features, without batch axis.
        dtype: policy of the projections.

    Raises:
        ModelError: if the loss cannot compare such shapes.
    """

    def __init__(
        self,
        loss: FeatureLoss,
        refs: tuple[FeatureRef, FeatureRef],
        shapes: tuple[tuple[Any, ...], tuple[Any, ...]],
        dtype: Any,
    ) -> None:
        super().__init__(dtype=dtype, autocast=False)
        _check(loss, refs, shapes)
        self.loss = loss
        self.teacher_ref, self.student_ref = refs
        width = loss.width(shapes[0])
        both = loss.heads == "both"
        # A projection of equal widths would only stand between the two.
        one = loss.heads == "student" and shapes[1][-1] != width
        self.teacher_head = _head(shapes[0], width, dtype) if both else None
        self.student_head = _head(shapes[1], width, dtype) if both or one else None
        self.built = True

    def features(self, teacher_values: Any, student_values: Any) -> tuple[Any, Any]:
        """Return both features as the loss takes them."""
        if self.teacher_head is not None:
            teacher_values = self.teacher_head(teacher_values)
        if self.student_head is not None:
            student_values = self.student_head(student_values)
        return teacher_values, student_values


def _check(
    loss: FeatureLoss, refs: Sequence[FeatureRef], shapes: Sequence[Any]
) -> None:
    why = loss.mismatch(*shapes)
    if not all(shapes):
        why = "a feature has at least one axis after that of the batch"
    if why:
        raise ModelError(
            f"{type(loss).__name__} cannot compare these layers: {why}. Received: "
            f"{refs[0].path!r} of the teacher with features of shape {shapes[0]}, "
            f"{refs[1].path!r} of the student with {shapes[1]}. Next: pair others."
        )


def _head(shape: tuple[Any, ...], width: int, dtype: Any) -> Any:
    """Return a dense layer on the last axis; for images it is a 1x1 convolution."""
    head = keras.layers.Dense(width, dtype=dtype, name="projection")
    head.build((None, *shape))
    return head


_SMALLEST_PROBABILITY = 1e-30  # its reciprocal, a gradient, still fits a float32
_BINARY_MARGIN = 1e-7  # the nearest to 1 that float32 tells from 1


@dataclass(frozen=True)
class Comparable:
    """How one output of the teacher and one of the student become comparable.

    Args:
        task: what the outputs are for.
        teacher: form of the teacher's numbers.
        student: form of the student's.
    """

    task: Task
    teacher: Form
    student: Form

    def values(self, teacher_values: Any, student_values: Any) -> tuple[Any, Any]:
        """Return both as logits, or as they are where the task is no question."""
        return self.teacher_values(teacher_values), _logits(
            student_values, self.student
        )

    def teacher_values(self, values: Any) -> Any:
        """Return what the teacher gives as logits, or as it is."""
        return _logits(values, self.teacher)

    def as_students(self, values: Any) -> Any:
        """Return what the teacher gives in the form of the student's numbers."""
        if self.teacher is self.student:
            return values
        logits = self.teacher_values(values)
        if self.student is Form.SOFTMAX:
            return ops.softmax(logits)
        return ops.sigmoid(logits) if self.student is Form.SIGMOID else logits


def comparable(teacher: Output, student: Output) -> Comparable:
    """Return how two outputs are compared.

    Probabilities and the logits of a classifier are compared as logits, anything else
    as it is.

    Raises:
        ModelError: if the two outputs cannot mean the same.
    """
    task = _common_task(teacher, student)
    if task is Task.REGRESSION:
        return Comparable(task, Form.LINEAR, Form.LINEAR)
    if teacher.form is Form.UNKNOWN or student.form is Form.UNKNOWN:
        who = "teacher" if teacher.form is Form.UNKNOWN else "student"
        raise ModelError(
            f"Neither the last layer nor a loss tells whether the {who} gives logits "
            f"or probabilities. Next: compile the {who} with the loss that it was "
            "trained with, from_logits=True or False."
        )
    return Comparable(task, teacher.form, student.form)


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


def _logits(values: Any, form: Form) -> Any:
    """Return logits; the logarithm of a softmax is as good as what went into it."""
    if form is Form.SOFTMAX:
        return ops.log(ops.maximum(values, _SMALLEST_PROBABILITY))
    if form is Form.SIGMOID:
        values = ops.clip(values, _BINARY_MARGIN, 1 - _BINARY_MARGIN)
        return ops.log(values) - ops.log1p(-values)
    return values


class Reduced(keras.losses.Loss):
    """Makes one number of what a function gives for a batch.

    Sample weights, masks, half precision and the scaling over replicas are Keras's.

    Args:
        distances: takes what the teacher gives and what the student gives, in float32,
            and returns one value per sample, or per entry of it.
    """

    def __init__(self, distances: Callable[[Any, Any], Any]) -> None:
        super().__init__(name="distillation", dtype="float32")
        self._distances = distances

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the distances: what the teacher gives comes first."""
        return self._distances(y_true, y_pred)
