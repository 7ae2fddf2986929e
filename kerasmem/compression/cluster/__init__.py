"""The choice of how many values a weight may take."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from kerasmem.checks import Patterns, Whole
from kerasmem.compression.technique import Technique

STARTS = ("kmeans++", "linear", "density")
MOST = 256  # a code is one byte


@dataclass(frozen=True)
class Cluster(Technique):
    """Weight clustering: let every weight take one of a few values, found by k-means.

    The file becomes smaller, because few values compress well; RAM and time stay.
    Kernels and embedding tables are clustered, all but those of depthwise layers.
    Zeros stay zeros, so cluster after pruning. While `km.compress` fine-tunes, the
    values move and entries keep to theirs.

    Source: Han, Mao and Dally, "Deep Compression: Compressing Deep Neural Networks with
    Pruning, Trained Quantization and Huffman Coding", 2016.

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
        seed: of k-means++, from 0.

    Raises:
        ConfigError: if a value is out of its range.

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
