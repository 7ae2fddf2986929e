"""Which samples of a batch are alike.

Frederick Tung, Greg Mori: Similarity-Preserving Knowledge Distillation, 2019.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import FeatureLoss, Layers
from kerasmem.compression.distill.losses.vectors import (
    batch_size,
    flat,
    products,
    unit,
)


def similarities(features: Any) -> Any:
    """Return the dot products of a batch's features, each row of length 1."""
    return unit(products(flat(features)))


@dataclass(frozen=True)
class SimilarityPreserving(FeatureLoss):
    """Students to whom the samples are alike that are alike to the teacher.

    The value is the mean squared difference of the two (batch, batch) matrices of
    similarities.
    """

    _: KW_ONLY
    layers: Layers = "last"

    name: ClassVar[str] = "similarity_preserving"

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: its row of the matrix."""
        difference = similarities(teacher) - similarities(student)
        return ops.sum(ops.square(difference), axis=-1) / batch_size(teacher)
