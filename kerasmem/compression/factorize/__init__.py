"""Config of low-rank factorization."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from kerasmem.checks import Patterns, Real
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError

_SHARE = Real("a fraction to keep,", above=0, most=1)
METHODS = ("spatial", "channel")


@dataclass(frozen=True)
class Factorize(Technique):
    """Low-rank factorization: replaces a large kernel by two small ones.

    The product of the small kernels is the best approximation of the kernel for its
    rank. This reduces weights in the file and in RAM, and multiplications. Dense,
    EinsumDense and convolution layers are factorized if that saves weights. Layers in
    the graph of a model become several plain Keras layers. Layers inside of other
    layers and of KerasHub models get their factors as sublayers.

    Source: Jaderberg, Vedaldi and Zisserman, "Speeding up Convolutional Neural
    Networks with Low Rank Expansions", 2014 (spatial).

    Args:
        rank_ratio: Float in (0, 1]. Fraction of the rank of every kernel to keep.
        energy: Float in (0, 1]. Fraction of the sum of squares of every kernel to
            keep. Exactly one of `rank_ratio` and `energy` is required.
        method: Method for convolutions. `"spatial"` convolves rows, then columns (2D;
            others use `"channel"`). `"channel"` convolves to fewer channels and expands
            them with a pointwise convolution. Defaults to `"spatial"`.
        include: Regular expressions for paths or layer class names. Only matching
            kernels are factorized. Defaults to all kernels.
        exclude: Regular expressions for paths or layer class names of kernels to leave
            unchanged.

    Raises:
        ConfigError: If a value is out of range, or not exactly one of `rank_ratio` and
            `energy` is set.

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
                "Expected exactly one of rank_ratio and energy in Factorize. Received: "
                f"rank_ratio={self.rank_ratio!r}, energy={self.energy!r}."
            )
