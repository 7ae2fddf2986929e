"""Two outputs of one meaning, in the numbers that losses take."""

from dataclasses import dataclass
from typing import Any

from keras import ops

from kerasmem.errors import ModelError
from kerasmem.graph.outputs import Form, Output, Task

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

    def values(self, taught: Any, learned: Any) -> tuple[Any, Any]:
        """Return both as logits, or as they are where the task is no question."""
        return self.taught(taught), _logits(learned, self.student)

    def taught(self, values: Any) -> Any:
        """Return what the teacher gives as logits, or as it is."""
        return _logits(values, self.teacher)

    def as_students(self, values: Any) -> Any:
        """Return what the teacher gives in the form of the student's numbers."""
        if self.teacher is self.student:
            return values
        logits = self.taught(values)
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
