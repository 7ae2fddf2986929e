"""How likely every sample is to be picked as another's neighbor.

Nikolaos Passalis, Anastasios Tefas: Learning Deep Representations with Probabilistic
Knowledge Transfer, 2018.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import FeatureLoss, Layers
from kerasmem.compression.distill.losses.vectors import (
    flat,
    off_diagonal,
    products,
    unit,
)

_SMALLEST = 1e-7


def neighbor_probabilities(features: Any) -> Any:
    """Return the conditional probabilities of all pairs, (batch, batch), rows sum to 1.

    They come from the cosine similarity, moved into [0, 1]; the diagonal is 0.
    """
    kernel = (products(unit(flat(features))) + 1) / 2 * off_diagonal(features)
    return kernel / ops.maximum(ops.sum(kernel, axis=-1, keepdims=True), _SMALLEST)


@dataclass(frozen=True)
class ProbabilisticKnowledgeTransfer(FeatureLoss):
    """Students with the teacher's probabilities of neighborhood (PKT).

    The value is the divergence of the two conditional distributions, mean of the rows.
    """

    _: KW_ONLY
    layers: Layers = "last"

    name: ClassVar[str] = "probabilistic_knowledge_transfer"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: the divergence of its row."""
        taught, learned = (
            ops.maximum(neighbor_probabilities(f), _SMALLEST)
            for f in (teacher, student)
        )
        away = off_diagonal(teacher)
        return ops.sum(away * taught * (ops.log(taught) - ops.log(learned)), axis=-1)
