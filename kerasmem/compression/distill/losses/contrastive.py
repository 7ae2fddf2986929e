"""Telling the teacher's view of a sample from its views of others.

Yonglong Tian, Dilip Krishnan, Phillip Isola: Contrastive Representation Distillation,
2020.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import FeatureLoss, Layers
from kerasmem.compression.distill.losses.vectors import flat, off_diagonal, unit
from kerasmem.errors import ConfigError


def contrast(teacher: Any, student: Any, temperature: float) -> Any:
    """Return minus the log share of each sample's own partner (InfoNCE).

    Args:
        teacher: embeddings, (batch, dimension).
        student: likewise.
        temperature: of the softmax over the batch, above 0.
    """
    teacher, student = unit(flat(teacher)), unit(flat(student))
    alike = ops.matmul(student, ops.transpose(teacher)) / temperature
    own = ops.sum(alike * (1.0 - off_diagonal(student)), axis=-1)
    return ops.logsumexp(alike, axis=-1) - own


@dataclass(frozen=True)
class Contrastive(FeatureLoss):
    """Students that tell the teacher's feature of a sample from those of others (CRD).

    Both features are projected onto one space by trained dense layers. The negatives
    are the other samples of the batch, compared by InfoNCE, which the paper has as a
    variant; the paper's memory bank of negatives is left out, so large batches help.

    Args:
        dimension: of the common space, from 1.
        temperature: of the softmax over the batch, above 0.
    """

    _: KW_ONLY
    layers: Layers = "last"
    dimension: int = 128
    temperature: float = 0.07

    name: ClassVar[str] = "contrastive"
    heads: ClassVar[str] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("temperature", above=0)
        if not isinstance(self.dimension, int) or self.dimension < 1:
            raise ConfigError(
                "The dimension of Contrastive is a whole number from 1. "
                f"Received: dimension={self.dimension!r}."
            )

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample."""
        return contrast(teacher, student, self.temperature)

    def width(self, teacher: tuple[Any, ...]) -> int:
        """Return the dimension of the common space."""
        del teacher
        return self.dimension
