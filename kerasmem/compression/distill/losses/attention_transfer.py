"""Where in an image the channels are active.

Sergey Zagoruyko, Nikos Komodakis: Paying More Attention to Attention: Improving the
Performance of Convolutional Neural Networks via Attention Transfer, 2017.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from keras import ops

from kerasmem.compression.distill.losses.base import FeatureLoss
from kerasmem.compression.distill.losses.vectors import SMALLEST, flat, unit


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
