"""Compatibility of teacher and student outputs and layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from kerasmem.checks import Real, invalid
from kerasmem.compression.distill.features import FeatureRef
from kerasmem.compression.distill.losses.base import FeatureLoss
from kerasmem.errors import ModelError, as_received
from kerasmem.graph.outputs import ModelOutput, OutputForm, OutputTask
from kerasmem.types import Model, Tensor, Tensors


def check_models(teachers: Sequence[Any], student: Model) -> None:
    """Raises `ModelError` unless teachers and student are distinct Keras models."""
    if not teachers:
        raise ModelError("Expected at least one teacher. Received: an empty list.")
    roles = [*(("teacher", teacher) for teacher in teachers), ("student", student)]
    for role, model in roles:
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"The {role} must be a keras.Model, as in distill(teacher, student, "
                f"data). Received: {role}={as_received(model)}."
            )
    if any(teacher is student for teacher in teachers):
        raise ModelError(
            "Teacher and student are the same model, so the teacher would change in "
            f"training. Received: {student.name!r} twice. Next: pass a clone."
        )


def teacher_shares(teachers: list[Any], weights: Any) -> list[float]:
    """Returns the normalized weight of each teacher.

    Raises:
        ConfigError: If the list has another length or an invalid number.
    """
    if isinstance(weights, str):
        raise invalid("distill", "teacher_weights", weights, "a list of numbers")
    numbers = [1.0] * len(teachers) if weights is None else list(weights)
    for number in numbers:
        Real(least=0).check("distill", "teacher_weights", number)
    if len(numbers) != len(teachers) or sum(numbers) <= 0:
        valid = f"one number from 0 for each teacher ({len(teachers)}), and not all 0"
        raise invalid("distill", "teacher_weights", weights, valid)
    return [weight / sum(numbers) for weight in numbers]


def check_outputs(answers: Any, predictions: Any) -> None:
    """Raises `ModelError` unless all outputs of both models match in name and shape.

    Both arguments are tensors, dicts or lists for the same batch.
    """
    of_teacher, of_student = _shapes(answers), _shapes(predictions)
    if of_teacher != of_student:
        raise ModelError(
            "Teacher and student must have outputs of the same shape, such as an equal "
            f"number of classes. Received: {_text(of_teacher)} of the teacher, "
            f"{_text(of_student)} of the student."
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
    """A loss on a pair of features, one of the teacher and one of the student.

    Its weights are the projections, which are trained with the student and discarded
    with the distiller.

    Raises:
        ModelError: If the loss does not support these shapes.
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
        width = shapes[0][-1]
        # Equal widths need no projection.
        projects = loss.projects and shapes[1][-1] != width
        self.student_head = _head(shapes[1], width, dtype) if projects else None
        self.built = True

    def projected(self, student_values: Any) -> Any:
        """Returns the feature of the student after projection."""
        if self.student_head is None:
            return student_values
        return self.student_head(student_values)


def _check(
    loss: FeatureLoss, refs: Sequence[FeatureRef], shapes: Sequence[Any]
) -> None:
    why = loss.mismatch(*shapes)
    if not all(shapes):
        why = "a feature needs at least one axis after the batch axis"
    if why:
        raise ModelError(
            f"{type(loss).__name__} cannot compare these layers: {why}. Received: "
            f"{refs[0].path!r} of the teacher with features of shape {shapes[0]}, "
            f"{refs[1].path!r} of the student with {shapes[1]}. Next: pair other "
            "layers."
        )


def _head(shape: tuple[Any, ...], width: int, dtype: Any) -> Any:
    head = keras.layers.Dense(width, dtype=dtype, name="projection")
    head.build((None, *shape))
    return head


_SMALLEST_PROBABILITY = 1e-30  # its reciprocal, a gradient, still fits a float32
_BINARY_MARGIN = 1e-7  # float32 cannot resolve smaller distances to 1


@dataclass(frozen=True)
class Comparable:
    """Conversion of one output of teacher and student to comparable values."""

    task: OutputTask
    teacher: OutputForm
    student: OutputForm

    def values(self, teacher_values: Any, student_values: Any) -> tuple[Any, Any]:
        """Returns both outputs as logits; regression outputs are unchanged."""
        return self.teacher_values(teacher_values), _logits(
            student_values, self.student
        )

    def teacher_values(self, values: Any) -> Any:
        """Returns the teacher output as logits; regression outputs are unchanged."""
        return _logits(values, self.teacher)


def comparable(teacher: ModelOutput, student: ModelOutput) -> Comparable:
    """Returns the conversion for two outputs.

    Classifier outputs are compared as logits, other outputs unchanged.

    Raises:
        ModelError: If the outputs have different tasks, or an unknown form.
    """
    task = _common_task(teacher, student)
    if task is OutputTask.REGRESSION:
        return Comparable(task, OutputForm.LINEAR, OutputForm.LINEAR)
    if teacher.form is OutputForm.UNKNOWN or student.form is OutputForm.UNKNOWN:
        who = "teacher" if teacher.form is OutputForm.UNKNOWN else "student"
        raise ModelError(
            f"Cannot determine whether the {who} returns logits or probabilities, from "
            f"its last layer or loss. Next: compile the {who} with its training loss, "
            "with from_logits=True or False."
        )
    return Comparable(task, teacher.form, student.form)


def _common_task(teacher: ModelOutput, student: ModelOutput) -> OutputTask:
    forms = {teacher.form, student.form}
    if forms >= {OutputForm.SOFTMAX, OutputForm.SIGMOID}:
        raise ModelError(
            "Teacher and student must have the same task. Received: the output of the "
            f"teacher is {teacher.form.value}, of the student {student.form.value}."
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
    """Reduces a distance function to a scalar loss.

    The base class implements sample weights, masks, mixed precision and scaling over
    replicas. `distances` returns one value per sample or entry, in float32.
    """

    def __init__(self, distances: Callable[[Any, Any], Any]) -> None:
        super().__init__(name="distillation", dtype="float32")
        self._distances = distances

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        """Returns the distances; `y_true` contains the teacher values."""
        return self._distances(y_true, y_pred)
