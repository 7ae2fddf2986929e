"""The right class and the others, each with a weight of its own.

Borui Zhao, Quan Cui, Renjie Song, Yiyu Qiu, Jiajun Liang: Decoupled Knowledge
Distillation, 2022.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import Answers, OutputLoss
from kerasmem.compression.distill.losses.logits import categorical_divergence
from kerasmem.compression.distill.losses.vectors import one_hot

_OUT = 1e4  # taken off the right class's logit: its probability is 0 in float32


def target_divergence(teacher: Any, student: Any, target: Any, temperature: Any) -> Any:
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
        ops.exp(taught) * (taught - learned)
        for taught, learned in zip(teacher, student, strict=True)
    ]
    return temperature**2 * (terms[0] + terms[1])


def other_divergence(teacher: Any, student: Any, target: Any, temperature: Any) -> Any:
    """Return T^2 KL of the classes but the right one among themselves (NCKD).

    Takes what `target_divergence` does.
    """
    out = _OUT * temperature * target
    return categorical_divergence(teacher - out, student - out, temperature)


@dataclass(frozen=True)
class DKD(OutputLoss):
    """Divergence in the right class and divergence among the others, weighted apart.

    For classifiers, with labels.

    Args:
        alpha: weight of the right class.
        beta: weight of the other classes; the paper takes up to 8.
    """

    _: KW_ONLY
    alpha: float = 1.0
    beta: float = 8.0

    name: ClassVar[str] = "dkd"
    needs_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("alpha")
        self._check_number("beta")

    def distances(self, answers: Answers) -> Any:
        """Return one value per distribution."""
        target = one_hot(answers.labels, answers.student)
        values = answers.teacher, answers.student, target, answers.temperature
        right, others = target_divergence(*values), other_divergence(*values)
        return self.alpha * right + self.beta * others


def _log_target_and_rest(logits: Any, target: Any) -> tuple[Any, Any]:
    log_all = ops.log_softmax(logits)
    right = ops.sum(log_all * target, axis=-1)
    return right, ops.logsumexp(log_all - _OUT * target, axis=-1)
