"""Features compared entry by entry, behind a trained regressor.

Adriana Romero, Nicolas Ballas, Samira Ebrahimi Kahou, Antoine Chassang, Carlo Gatta,
Yoshua Bengio: FitNets: Hints for Thin Deep Nets, 2015.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import FeatureLoss
from kerasmem.compression.distill.losses.vectors import flat


def mean_squared_distance(teacher: Any, student: Any) -> Any:
    """Return the mean squared difference of all entries, one value per sample."""
    return ops.mean(ops.square(flat(teacher) - flat(student)), axis=-1)


@dataclass(frozen=True)
class Features(FeatureLoss):
    """Students whose layers give what layers of the teacher give (FitNets' hints).

    Where the number of channels differs, a projection of the student's channels onto
    the teacher's is trained along: a dense layer, or for images a 1x1 convolution.
    """

    name: ClassVar[str] = "features"
    heads: ClassVar[str] = "student"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample."""
        return mean_squared_distance(teacher, student)

    def mismatch(
        self, teacher: tuple[Any, ...], student: tuple[Any, ...]
    ) -> str | None:
        """Return why features of these shapes cannot be compared, or None."""
        if teacher[:-1] == student[:-1]:
            return None
        return (
            "features are compared entry by entry, so their shapes may differ only "
            "in the last axis"
        )
