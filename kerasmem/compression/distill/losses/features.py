"""Losses on features: entry by entry, as attention, as likeness of samples.

Sources: Adriana Romero, Nicolas Ballas, Samira Ebrahimi Kahou, Antoine Chassang, Carlo
Gatta, Yoshua Bengio: FitNets: Hints for Thin Deep Nets, 2015 (`Features`, behind a
trained regressor). Sergey Zagoruyko, Nikos Komodakis: Paying More Attention to
Attention: Improving the Performance of Convolutional Neural Networks via Attention
Transfer, 2017. Frederick Tung, Greg Mori: Similarity-Preserving Knowledge Distillation,
2019.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import FeatureLoss, Layers
from kerasmem.compression.distill.losses.vectors import (
    SMALLEST,
    batch_size,
    flat,
    products,
    unit,
)


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


def attention_map(features: Any, power: float) -> Any:
    """Return the channels' absolute values to a power, summed, as unit vectors.

    Args:
        features: (batch, ..., channels).
        power: p, above 0.
    """
    size = ops.square(features) if power == 2 else ops.abs(features) ** power
    return unit(flat(ops.sum(size, axis=-1)))


@dataclass(frozen=True)
class AttentionTransfer(FeatureLoss):
    """Students that look where the teacher looks.

    The value is half the distance of the two attention maps; the channels' number does
    not matter.

    Args:
        power: p of the activation-based map, above 0.
    """

    _: KW_ONLY
    power: float = 2.0

    name: ClassVar[str] = "attention_transfer"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("power", above=0)

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample."""
        maps = attention_map(teacher, self.power), attention_map(student, self.power)
        squares = ops.sum(ops.square(maps[0] - maps[1]), axis=-1)
        return 0.5 * ops.sqrt(ops.maximum(squares, SMALLEST))

    def mismatch(
        self, teacher: tuple[Any, ...], student: tuple[Any, ...]
    ) -> str | None:
        """Return why features of these shapes cannot be compared, or None."""
        if teacher[:-1] == student[:-1] and len(teacher) > 1:
            return None
        return (
            "attention is compared place by place, so the features must have the "
            "same places before their last axis, as those of images and sequences have"
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
