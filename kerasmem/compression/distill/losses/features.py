"""Losses on layer features: squared error and attention maps.

Sources: Adriana Romero, Nicolas Ballas, Samira Ebrahimi Kahou, Antoine Chassang, Carlo
Gatta, Yoshua Bengio: FitNets: Hints for Thin Deep Nets, 2015 (`Features`, with a
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
    """Returns the mean squared difference per sample."""
    return ops.mean(ops.square(flat(teacher) - flat(student)), axis=-1)


@dataclass(frozen=True)
class Features(FeatureLoss):
    """Hint learning (FitNets): mean squared error of intermediate features.

    If the numbers of channels differ, training also learns a projection from the
    student channels to the teacher channels. It is a dense layer, or a 1x1 convolution
    for images.

    Source: Romero, Ballas, Kahou, Chassang, Gatta and Bengio, "FitNets: Hints for Thin
    Deep Nets", 2015.

    Args:
        weight: Non-negative float, or a function of the step such as a
            `keras.optimizers.schedules.LearningRateSchedule`. Factor of the loss.
            Defaults to 1.
        layers: Layers to compare: `"auto"` pairs layers by shape and depth, `"last"`
            pairs the last hidden layers. Otherwise, pairs of (teacher, student) names.
            A name can be a path through nested models (`"encoder/dense"`) or a regular
            expression. An ending such as `":1"` selects the second output tensor.
            Defaults to `"auto"`.

    Raises:
        ConfigError: If a value is out of range, or `layers` has another form.

    Example:
        >>> Features(layers={"block_4": "block_2"}).layers
        (('block_4', 'block_2'),)
    """

    name: ClassVar[str] = "features"
    projects: ClassVar[bool] = True

    def distances(self, teacher: Model, student: Model) -> Any:
        """Returns the distance per sample."""
        return mean_squared_distance(teacher, student)

    def mismatch(
        self, teacher: tuple[Any, ...], student: tuple[Any, ...]
    ) -> str | None:
        """Returns why features of these shapes cannot be compared, or `None`."""
        if teacher[:-1] == student[:-1]:
            return None
        return (
            "features are compared entry by entry, so their shapes may differ only "
            "in the last axis"
        )


def attention_map(features: Tensor, power: float) -> Any:
    """Returns normalized attention maps of features of shape (batch, ..., channels).

    A map is the sum over channels of the absolute values to a power.
    """
    size = ops.square(features) if power == 2 else ops.abs(features) ** power
    return unit(flat(ops.sum(size, axis=-1)))


@dataclass(frozen=True)
class AttentionTransfer(FeatureLoss):
    """Attention transfer: half the distance of two spatial attention maps.

    A map is the sum over channels of the absolute values to a power. The numbers of
    channels may therefore differ.

    Source: Zagoruyko and Komodakis, "Paying More Attention to Attention: Improving the
    Performance of Convolutional Neural Networks via Attention Transfer", 2017.

    Args:
        weight: Non-negative float, or a function of the step such as a
            `keras.optimizers.schedules.LearningRateSchedule`. Factor of the loss.
            Defaults to 1.
        layers: Layers to compare: `"auto"` pairs layers by shape and depth, `"last"`
            pairs the last hidden layers. Otherwise, pairs of (teacher, student) names.
            A name can be a path through nested models (`"encoder/dense"`) or a regular
            expression. An ending such as `":1"` selects the second output tensor.
            Defaults to `"auto"`.
        power: Positive float. Exponent of the absolute values. Defaults to 2.

    Raises:
        ConfigError: If a value is out of range, or `layers` has another form.

    Example:
        >>> AttentionTransfer(weight=1000.0).power
        2.0
    """

    _: KW_ONLY
    power: Annotated[float, Real(above=0)] = 2.0

    name: ClassVar[str] = "attention_transfer"

    def distances(self, teacher: Model, student: Model) -> Any:
        """Returns the distance per sample."""
        maps = attention_map(teacher, self.power), attention_map(student, self.power)
        squares = ops.sum(ops.square(maps[0] - maps[1]), axis=-1)
        return 0.5 * ops.sqrt(ops.maximum(squares, SMALLEST))

    def mismatch(
        self, teacher: tuple[Any, ...], student: tuple[Any, ...]
    ) -> str | None:
        """Returns why features of these shapes cannot be compared, or `None`."""
        if teacher[:-1] == student[:-1] and len(teacher) > 1:
            return None
        return (
            "attention is compared place by place, so the features must have the "
            "same places before their last axis, as in images and sequences"
        )
