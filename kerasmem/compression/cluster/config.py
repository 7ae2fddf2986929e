"""The choice of how many values a weight may take."""

from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from kerasmem.compression.cluster.apply import NAME, chosen, cluster_weights
from kerasmem.compression.cluster.kmeans import STARTS
from kerasmem.compression.cluster.training import clusters_kept
from kerasmem.compression.regular_expressions import regular_expressions
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError
from kerasmem.records import WeightChange

MOST = 256  # a code is one byte


@dataclass(frozen=True)
class Cluster(Technique):
    """Let every weight take one of a few values, which fit it best.

    The file becomes smaller, because few values compress well; RAM and time stay.
    Kernels and embedding tables are clustered, all but those of depthwise layers.
    Zeros stay zeros, so cluster after pruning. While `km.compress` fine-tunes, the
    values move and entries keep to theirs.

    Args:
        n: most distinct values, 2 to 256; zero is one of them where there are zeros.
        start: where k-means begins: `"kmeans++"`, `"linear"` for even steps, which keep
            large weights, or `"density"` for as many weights between each two.
        granularity: `"tensor"` for `n` values in a weight, `"channel"` in each of its
            channels.
        keep_zeros: False to let zeros become other values.
        include: regular expressions; a weight of two axes or more whose path holds one
            is clustered too, or whose layer is of a class of that name.
        exclude: likewise; such a weight is left alone.
        seed: of k-means++.

    Raises:
        ConfigError: if a value is out of its range.

    Example:
        >>> Cluster(16).to_json()["start"]
        'kmeans++'
    """

    n: int
    _: KW_ONLY
    start: str = "kmeans++"
    granularity: str = "tensor"
    keep_zeros: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    seed: int = 0

    name: ClassVar[str] = NAME
    trains_on: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _is_whole(self.n) or not 2 <= self.n <= MOST:
            raise ConfigError(
                f"Cluster leaves 2 to {MOST} values. Received: n={self.n!r}."
            )
        if not _is_whole(self.seed) or self.seed < 0:
            raise ConfigError(
                "The seed of Cluster is a whole number from 0. "
                f"Received: seed={self.seed!r}."
            )
        self._check_allowed(
            {
                "start": STARTS,
                "granularity": ("tensor", "channel"),
                "keep_zeros": (True, False),
            }
        )
        for field in ("include", "exclude"):
            patterns = regular_expressions("Cluster", field, getattr(self, field))
            object.__setattr__(self, field, patterns)

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Give the kernels of `model` few values, in place; it takes no data."""
        del data
        return cluster_weights(model, self)

    def preserved(self, model: Any, trainer: Any) -> AbstractContextManager[None]:
        """Return a scope in which entries of one value stay alike in training."""
        weights, _ = chosen(model, self)
        return clusters_kept(trainer, weights, self)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
