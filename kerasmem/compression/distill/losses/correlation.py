"""How the samples of a batch correlate, by a Gaussian kernel.

Baoyun Peng, Xiao Jin, Jiaheng Liu, Dongsheng Li, Yichao Wu, Yu Liu, Shunfeng Zhou,
Zhaoning Zhang: Correlation Congruence for Knowledge Distillation, 2019.
"""

import math
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
from kerasmem.errors import ConfigError


def correlations(features: Any, gamma: float, order: int) -> Any:
    """Return the kernel of every pair of samples as a Taylor series, (batch, batch).

    Args:
        features: (batch, ...); they are brought to length 1.
        gamma: of the kernel exp(-gamma |x - y|^2).
        order: the last power of the dot product in the series.
    """
    dots = products(unit(flat(features)))
    series = ops.ones_like(dots)
    for power in range(order, 0, -1):  # from the inside out: no power of 0 is taken
        series = 1 + 2 * gamma / power * dots * series
    return math.exp(-2 * gamma) * series


@dataclass(frozen=True)
class Correlation(FeatureLoss):
    """Students whose samples correlate as the teacher's do (correlation congruence).

    The value is the mean squared difference of the two (batch, batch) matrices.

    Args:
        gamma: of the Gaussian kernel, above 0.
        order: of its Taylor series, from 1.
    """

    _: KW_ONLY
    layers: Layers = "last"
    gamma: float = 0.4
    order: int = 2

    name: ClassVar[str] = "correlation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("gamma", above=0)
        if not isinstance(self.order, int) or self.order < 1:
            raise ConfigError(
                "The order of Correlation is a whole number from 1. "
                f"Received: order={self.order!r}."
            )

    def distances(self, teacher: Any, student: Any) -> Any:
        """Return one value per sample: its row of the matrix."""
        taught, learned = (
            correlations(f, self.gamma, self.order) for f in (teacher, student)
        )
        return ops.sum(ops.square(taught - learned), axis=-1) / batch_size(teacher)
