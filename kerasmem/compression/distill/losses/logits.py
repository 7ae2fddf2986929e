"""Answers compared as distributions, or as values.

Geoffrey Hinton, Oriol Vinyals, Jeff Dean: Distilling the Knowledge in a Neural
Network, 2015.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import Answers, OutputLoss
from kerasmem.graph.outputs import Task


def categorical_divergence(teacher: Any, student: Any, temperature: Any) -> Any:
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


def binary_divergence(teacher: Any, student: Any, temperature: Any) -> Any:
    """Return T^2 KL(teacher || student) of yes-or-no answers, mean of the last axis."""
    teacher, student = teacher / temperature, student / temperature
    yes = ops.log_sigmoid(teacher) - ops.log_sigmoid(student)
    no = ops.log_sigmoid(-teacher) - ops.log_sigmoid(-student)
    divergence = ops.sigmoid(teacher) * yes + ops.sigmoid(-teacher) * no
    return temperature**2 * ops.mean(divergence, axis=-1)


@dataclass(frozen=True)
class Logits(OutputLoss):
    """The divergence of the student's softened answers from the teacher's.

    Classes, yes-or-no answers and values are compared each in their own way; values by
    their mean squared error, which no temperature changes.

    Example:
        >>> Logits(temperature=3.0).to_json()["temperature"]
        3.0
    """

    name: ClassVar[str] = "logits"
    tasks: ClassVar[tuple[Task, ...]] = (
        Task.CATEGORICAL,
        Task.BINARY,
        Task.REGRESSION,
    )

    def distances(self, answers: Answers) -> Any:
        """Return one value for every entry of the output but its last axis."""
        values = answers.teacher, answers.student
        if answers.task is Task.REGRESSION:
            return ops.mean(ops.square(values[0] - values[1]), axis=-1)
        if answers.task is Task.BINARY:
            return binary_divergence(*values, answers.temperature)
        return categorical_divergence(*values, answers.temperature)
