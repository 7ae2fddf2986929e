"""Losses on features of layers: entry by entry, or as maps of attention.

Sources: Adriana Romero, Nicolas Ballas, Samira Ebrahimi Kahou, Antoine Chassang, Carlo
Gatta, Yoshua Bengio: FitNets: Hints for Thin Deep Nets, 2015 (`Features`, behind a
trained regressor). Sergey Zagoruyko, Nikos Komodakis: Paying More Attention to
Attention: Improving the Performance of Convolutional Neural Networks via Attention
Transfer, 2017.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

from keras import ops

from kerasmem.checks import Real
from kerasmem.compression.distill.losses.base import (
    SMALLEST,
    FeatureLoss,
    flat,
    unit,
)
from kerasmem.types import Model, Tensor


def mean_squared_distance(teacher: Model, student: Model) -> Any:
    """Return the mean squared difference of all entries, one value per sample."""
    return ops.mean(ops.square(flat(teacher) - flat(student)), axis=-1)


@dataclass(frozen=True)
class Features(FeatureLoss):
    """Hint learning: the mean squared error of intermediate features (FitNets).

    Where the number of channels differs, the training also learns a projection of the
    student's channels onto the teacher's: a dense layer, or for images a 1x1
    convolution.

    Source: Romero, Ballas, Kahou, Chassang, Gatta and Bengio, "FitNets: Hints for Thin
    Deep Nets", 2015.

    Args:
        weight: factor of the loss, from 0: a number, or a function of the step such as
            a `keras.optimizers.schedules.LearningRateSchedule`.
        layers: which layers are compared: `"auto"`, by shape and depth; `"last"`, the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression, and end in `":1"` for the second tensor of a layer.

    Raises:
        ConfigError: if a value is out of its range, or `layers` are no pairs of names.

    Example:
        >>> Features(layers={"block_4": "block_2"}).layers
        (('block_4', 'block_2'),)
    """

    name: ClassVar[str] = "features"
    heads: ClassVar[str] = "student"

    def distances(self, teacher: Model, student: Model) -> Any:
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


def attention_map(features: Tensor, power: float) -> Any:
    """Return the channels' absolute values to a power, summed, as unit vectors.

    Args:
        features: (batch, ..., channels).
        power: p, above 0.
    """
    size = ops.square(features) if power == 2 else ops.abs(features) ** power
    return unit(flat(ops.sum(size, axis=-1)))


@dataclass(frozen=True)
class AttentionTransfer(FeatureLoss):
    """Attention transfer: half the distance of two spatial attention maps.

    A map sums the channels' absolute values to a power, place by place, so the numbers
    of channels may differ.

    Source: Zagoruyko and Komodakis, "Paying More Attention to Attention: Improving the
    Performance of Convolutional Neural Networks via Attention Transfer", 2017.

    Args:
        weight: factor of the loss, from 0: a number, or a function of the step such as
            a `keras.optimizers.schedules.LearningRateSchedule`.
        layers: which layers are compared: `"auto"`, by shape and depth; `"last"`, the
            last ones before the outputs; or pairs of names, the teacher's first. A name
            may be a path through nested models (`"encoder/dense"`), a regular
            expression, and end in `":1"` for the second tensor of a layer.
        power: p of the activation-based map, above 0.

    Raises:
        ConfigError: if a value is out of its range, or `layers` are no pairs of names.

    Example:
        >>> AttentionTransfer(weight=1000.0).power
        2.0
    """

    _: KW_ONLY
    power: Annotated[float, Real(above=0)] = 2.0

    name: ClassVar[str] = "attention_transfer"

    def distances(self, teacher: Model, student: Model) -> Any:
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
