"""What makes outputs and layers of two models comparable, and what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from kerasmem.checks import Real, invalid
from kerasmem.compression.distill.features import FeatureRef
from kerasmem.compression.distill.losses.base import FeatureLoss
from kerasmem.compression.distill.sample_weights import BY_CONFIDENCE
from kerasmem.errors import ModelError, as_received
from kerasmem.graph.outputs import ModelOutput, OutputForm, OutputTask
from kerasmem.types import Model, Tensor, Tensors


def check_models(teachers: Sequence[Any], student: Model) -> None:
    """Raise unless teachers and student are Keras models.

    Raises:
        ModelError: if one is no model, a teacher is the student, or there is none.
    """
    if not teachers:
        raise ModelError("There must be a teacher. Received: an empty list.")
    roles = [*(("teacher", teacher) for teacher in teachers), ("student", student)]
    for role, model in roles:
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"The {role} must be a keras.Model, as in distill(teacher, student, "
                f"data). Received: {role}={as_received(model)}."
            )
    if any(teacher is student for teacher in teachers):
        raise ModelError(
            "Teacher and student are one and the same model, which would change while "
            f"it teaches. Received: {student.name!r} twice. Next: hand in a clone."
        )


def teacher_shares(teachers: list[Any], weights: Any) -> list[float] | None:
    """Return the share of every teacher, the weights over their sum.

    Args:
        teachers: the teachers.
        weights: one number from 0 for each, None for equal shares, or "confidence" for
            shares that differ by sample, for which None is returned.

    Raises:
        ConfigError: if they are not as many, or not such numbers.
    """
    if isinstance(weights, str):
        if weights == BY_CONFIDENCE and len(teachers) > 1:
            return None
        valid = f'numbers, or "{BY_CONFIDENCE}" for two teachers or more'
        raise invalid("distill", "teacher_weights", weights, valid)
    numbers = [1.0] * len(teachers) if weights is None else list(weights)
    for number in numbers:
        Real(least=0).check("distill", "teacher_weights", number)
    if len(numbers) != len(teachers) or sum(numbers) <= 0:
        valid = f"one number from 0 for each teacher ({len(teachers)}), and not all 0"
        raise invalid("distill", "teacher_weights", weights, valid)
    return [weight / sum(numbers) for weight in numbers]


def check_outputs(answers: Any, predictions: Any) -> None:
    """Raise unless the outputs of teacher and student have equal names and shapes.

    Args:
        answers: the teacher's outputs for a batch: a tensor, or a dict or list.
        predictions: the student's outputs for the same batch.

    Raises:
        ModelError: with both shapes.
    """
    of_teacher, of_student = _shapes(answers), _shapes(predictions)
    if of_teacher != of_student:
        raise ModelError(
            "Teacher and student must have outputs of the same shape, such as an equal "
            f"number of classes. Received: the teacher gives {_text(of_teacher)}, the "
            f"student {_text(of_student)}."
        )


def _shapes(outputs: Tensors) -> dict[str, tuple[Any, ...]]:
    pairs = keras.tree.flatten_with_path(outputs)
    return {".".join(map(str, path)): tuple(leaf.shape)[1:] for path, leaf in pairs}


def _text(shapes: dict[str, tuple[Any, ...]]) -> str:
    return ", ".join(
        f"{name} of shape (batch, {', '.join(map(str, shape))})"
        if name
        else f"shape (batch, {', '.join(map(str, shape))})"
        for name, shape in shapes.items()
    )


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

    task: OutputTask
    teacher: OutputForm
    student: OutputForm

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
        if self.student is OutputForm.SOFTMAX:
            return ops.softmax(logits)
        return ops.sigmoid(logits) if self.student is OutputForm.SIGMOID else logits


def comparable(teacher: ModelOutput, student: ModelOutput) -> Comparable:
    """Return how two outputs are compared.

    Probabilities and the logits of a classifier are compared as logits, anything else
    as it is.

    Raises:
        ModelError: if the two outputs cannot mean the same.
    """
    task = _common_task(teacher, student)
    if task is OutputTask.REGRESSION:
        return Comparable(task, OutputForm.LINEAR, OutputForm.LINEAR)
    if teacher.form is OutputForm.UNKNOWN or student.form is OutputForm.UNKNOWN:
        who = "teacher" if teacher.form is OutputForm.UNKNOWN else "student"
        raise ModelError(
            f"Neither the last layer nor a loss tells whether the {who} gives logits "
            f"or probabilities. Next: compile the {who} with the loss that it was "
            "trained with, from_logits=True or False."
        )
    return Comparable(task, teacher.form, student.form)


def _common_task(teacher: ModelOutput, student: ModelOutput) -> OutputTask:
    forms = {teacher.form, student.form}
    if forms >= {OutputForm.SOFTMAX, OutputForm.SIGMOID}:
        raise ModelError(
            "Teacher and student must answer the same question. Received: the "
            f"teacher's output is {teacher.form.value}, the student's is "
            f"{student.form.value}."
        )
    if OutputForm.SOFTMAX in forms:
        return OutputTask.CATEGORICAL
    if OutputForm.SIGMOID in forms:
        return OutputTask.BINARY
    tasks = [o.task for o in (student, teacher) if o.task is not OutputTask.UNKNOWN]
    return tasks[0] if tasks else OutputTask.REGRESSION


def _logits(values: Any, form: OutputForm) -> Any:
    if form is OutputForm.SOFTMAX:
        return ops.log(ops.maximum(values, _SMALLEST_PROBABILITY))
    if form is OutputForm.SIGMOID:
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

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        """Return the distances: what the teacher gives comes first."""
        return self._distances(y_true, y_pred)
