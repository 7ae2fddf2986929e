"""The choice of how far kernels are factorized."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from kerasmem.checks import Patterns, Real
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError

_SHARE = Real("the share that stays,", above=0, most=1)
METHODS = ("spatial", "tucker", "channel")


@dataclass(frozen=True)
class Factorize(Technique):
    """Low-rank factorization: replace a large kernel by two or three small ones.

    The kernels' product is the nearest of its rank to the kernel that was. Fewer
    weights, in the file and in RAM, and fewer multiplications. Dense, EinsumDense and
    convolutions are factorized where that saves weights: in a model's graph by thin
    layers in their place, which is plain Keras, inside of other layers and of models of
    KerasHub by thin layers within them.

    Sources: Jaderberg, Vedaldi and Zisserman, "Speeding up Convolutional Neural
    Networks with Low Rank Expansions", 2014 (spatial); Kim et al., "Compression of Deep
    Convolutional Neural Networks for Fast and Low Power Mobile Applications", 2016
    (Tucker).

    Args:
        rank_ratio: share of the rank of every kernel that stays, in (0, 1].
        energy: in place of it: share of a kernel's sum of squares that stays, in
            (0, 1].
        method: for convolutions: `"spatial"`, rows, then columns (2-D; others as by
            channel); `"tucker"`, fewer channels in, fewer out; `"channel"`, fewer
            channels out, then all of them at one place.
        include: regular expressions; only a kernel whose path holds one is
            factorized, or whose layer is of a class of that name.
        exclude: likewise; such a kernel is left alone.

    Raises:
        ConfigError: if a value is out of its range, or not one of `rank_ratio` and
            `energy` is given.

    Example:
        >>> Factorize(0.25).to_json()["method"]
        'spatial'
    """

    rank_ratio: Annotated[float, _SHARE] | None = None
    _: KW_ONLY
    energy: Annotated[float, _SHARE] | None = None
    method: Annotated[str, METHODS] = "spatial"
    include: Patterns = ()
    exclude: Patterns = ()

    name: ClassVar[str] = "factorize"
    undoes: ClassVar[tuple[str, ...]] = ("prune", "cluster")
    trains_on: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rank_ratio is None) == (self.energy is None):
            raise ConfigError(
                "Factorize keeps a share of the rank or of the energy, one of the two. "
                f"Received: rank_ratio={self.rank_ratio!r}, energy={self.energy!r}."
            )
