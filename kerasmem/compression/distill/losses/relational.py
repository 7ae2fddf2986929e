"""Distances between samples, and angles at them.

Wonpyo Park, Dongju Kim, Yan Lu, Minsu Cho: Relational Knowledge Distillation, 2019.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import FeatureLoss, Layers
from kerasmem.compression.distill.losses.vectors import (
    SMALLEST,
    batch_size,
    flat,
    huber,
    off_diagonal,
    unit,
)


def distances_between(features: Any) -> Any:
    """Return the distance of every pair over the mean of all, (batch, batch)."""
    vectors = flat(features)
    away = off_diagonal(vectors)
    squares = ops.sum(ops.square(_differences(vectors)), axis=-1)
    lengths = away * ops.sqrt(ops.maximum(squares, SMALLEST))
    mean = ops.sum(lengths) / ops.maximum(ops.sum(away), 1.0)
    return lengths / ops.maximum(mean, SMALLEST)


def angles_at(features: Any) -> Any:
    """Return the cosine at every sample between every two others, (batch,) * 3."""
    edges = unit(_differences(flat(features)))
    return ops.matmul(edges, ops.transpose(edges, (0, 2, 1)))


@dataclass(frozen=True)
class Relational(FeatureLoss):
    """Students that see the same distances and angles between samples (RKD).

    Each is compared by Huber's loss, averaged over all pairs and triples of different
    samples. A batch of n takes n^3 angles.

    Args:
        distance: weight of the distances.
        angle: weight of the angles.
    """

    _: KW_ONLY
    layers: Layers = "last"
    distance: float = 1.0
    angle: float = 2.0

    name: ClassVar[str] = "relational"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("distance")
        self._check_number("angle")

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: what is seen from it."""
        pairs = huber(distances_between(teacher) - distances_between(student))
        count = batch_size(teacher)
        value = self.distance * ops.sum(pairs, axis=-1) / ops.maximum(count - 1, 1.0)
        if not self.angle:
            return value
        angles = huber(angles_at(teacher) - angles_at(student))
        angles = angles * off_diagonal(teacher)
        triples = ops.maximum((count - 1) * (count - 2), 1.0)
        return value + self.angle * ops.sum(angles, axis=(1, 2)) / triples


def _differences(vectors: Any) -> Any:
    return ops.expand_dims(vectors, 0) - ops.expand_dims(vectors, 1)
