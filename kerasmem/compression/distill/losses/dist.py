"""Correlation of answers, within samples and within classes.

Tao Huang, Shan You, Fei Wang, Chen Qian, Chang Xu: Knowledge Distillation from a
Stronger Teacher, 2022.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import Answers, OutputLoss

_TINY = 1e-8


def pearson_distance(a: Any, b: Any, axis: int) -> Any:
    """Return 1 minus the correlation coefficient of two tensors along an axis."""
    a = a - ops.mean(a, axis=axis, keepdims=True)
    b = b - ops.mean(b, axis=axis, keepdims=True)
    squares = ops.sum(a * a, axis=axis) * ops.sum(b * b, axis=axis)
    return 1 - ops.sum(a * b, axis=axis) / ops.sqrt(ops.maximum(squares, _TINY**2))


@dataclass(frozen=True)
class DIST(OutputLoss):
    """Students that rank classes and samples as the teacher does, not more.

    For classifiers. The value is T^2 (beta * distance within samples + gamma *
    distance within classes), each 1 minus Pearson's coefficient.

    Args:
        beta: weight of the relation between the classes of a sample.
        gamma: weight of the relation between the samples of a class.
    """

    _: KW_ONLY
    temperature: Any = 1.0
    beta: float = 1.0
    gamma: float = 1.0

    name: ClassVar[str] = "dist"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("beta")
        self._check_number("gamma")

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
