"""Config of weight clustering."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from kerasmem.checks import Patterns, Whole
from kerasmem.compression.technique import Technique

STARTS = ("kmeans++", "linear", "density")
MOST = 256  # a code has one byte


@dataclass(frozen=True)
class Cluster(Technique):
    """Weight clustering: replaces every weight by one of `n` values found by k-means.

    The file becomes smaller because few values compress well. RAM and latency do not
    change. Kernels and embedding tables are clustered, except for depthwise layers.
    Zeros stay zero, so cluster after pruning. Fine-tuning in `km.compress` moves the
    shared values but keeps the assignment of weights to clusters.

    Source: Han, Mao and Dally, "Deep Compression: Compressing Deep Neural Networks with
    Pruning, Trained Quantization and Huffman Coding", 2016.

    Args:
        n: Integer in [2, 256]. Maximum number of distinct values, including zero.
        start: Initialization of k-means: `"kmeans++"`, `"linear"` or `"density"`.
            `"linear"` uses even steps, which preserve large weights. `"density"` uses
            quantiles. Defaults to `"kmeans++"`.
        granularity: `"tensor"` for `n` values per weight, `"channel"` for `n` values
            per output channel. Defaults to `"tensor"`.
        keep_zeros: Boolean. Whether zeros stay zero. Defaults to `True`.
        include: Regular expressions for paths or layer class names of additional
            weights to cluster. These need at least two axes.
        exclude: Regular expressions for paths or layer class names of weights to leave
            unchanged.
        seed: Non-negative integer. Seed of k-means++. Defaults to 0.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> Cluster(16).to_json()["start"]
        'kmeans++'
    """

    n: Annotated[int, Whole(2, MOST)]
    _: KW_ONLY
    start: Annotated[str, STARTS] = "kmeans++"
    granularity: Annotated[str, ("tensor", "channel")] = "tensor"
    keep_zeros: bool = True
    include: Patterns = ()
    exclude: Patterns = ()
    seed: Annotated[int, Whole(0)] = 0

    name: ClassVar[str] = "cluster"
    trains_on: ClassVar[bool] = True
