"""The choice of which channels disappear."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from kerasmem.checks import ByPattern, Patterns, Real, Whole
from kerasmem.compression.technique import Technique

COUNTED = ("channels", "parameters", "multiplications", "memory", "latency")
CRITERIA = (
    *("l1", "l2", "group", "batch_norm", "fpgm"),
    *("taylor", "activation", "random"),
)
SCOPES = ("layer", "global", "isomorphic")
_RATIO = Real("the share of channels that goes,", least=0, below=1)


@dataclass(frozen=True)
class PruneChannels(Technique):
    """Structured pruning: remove the channels, units and heads that matter least.

    The result is a plain Keras model with smaller layers and a fresh optimizer. The
    outputs are compared with those of the original without these channels.

    Sources: Li, Kadav, Durdanovic, Samet and Graf, "Pruning Filters for Efficient
    ConvNets", 2017 (L1); He, Liu, Wang, Hu and Yang, "Filter Pruning via Geometric
    Median for Deep Convolutional Neural Networks Acceleration" (FPGM), 2019; Liu et
    al., "Learning Efficient Convolutional Networks through Network Slimming", 2017
    (batch_norm); Molchanov, Tyree, Karras, Aila and Kautz, "Pruning Convolutional
    Neural Networks for Resource Efficient Inference", 2017 (rounds); Fang, Ma, Mi and
    Wang, "Isomorphic Pruning for Vision Models", 2024.

    Args:
        ratio: share that goes, in [0, 1).
        of: what `ratio` is a share of: `"channels"`, or as many channels as it takes
            to save this share of all `"parameters"` or `"multiplications"`, of the
            bytes of `"memory"` that activations of one sample take in inference, by an
            estimate, or of the `"latency"` of a batch, measured.
        criterion: how channels are ranked: `"l2"` and `"l1"` by the weights that make
            them, `"group"` by all weights that touch them, `"batch_norm"` by their
            scale, `"fpgm"` by the distance to the others, `"taylor"` by gradient x
            weight (takes a loss, and `data` with labels), `"activation"` by what they
            hand on (takes `data`), or `"random"`.
        scope: `"layer"` removes this share from every layer; `"global"` ranks all
            channels together, more go where they matter less; `"isomorphic"` ranks
            together what is built alike, such as the inner layers of all blocks.
        rounds: number of rounds in which they go, each the same share of what is left,
            1 to 1,000; `km.compress` fine-tunes after each.
        round_to: what stays of a layer is a multiple of this, from 1.
        min_channels: at least so many channels of a layer stay, from 1.
        ignore: regular expressions; what a weight makes whose path holds one stays.
        ratios: other ratios for some layers, as pairs of a regular expression for
            paths of weights and a ratio; the first that matches counts.
        verify: False to leave out the check, which runs both models once.
        seed: for the random criterion.

    Raises:
        ConfigError: if a value is out of its range.

    Example:
        >>> PruneChannels(0.5, round_to=8).to_json()["round_to"]
        8
    """

    ratio: Annotated[float, _RATIO]
    _: KW_ONLY
    of: Annotated[str, COUNTED] = "channels"
    criterion: Annotated[str, CRITERIA] = "l2"
    scope: Annotated[str, SCOPES] = "layer"
    rounds: Annotated[int, Whole(1, 1000)] = 1
    round_to: Annotated[int, Whole(1)] = 1
    min_channels: Annotated[int, Whole(1)] = 1
    ignore: Patterns = ()
    ratios: Annotated[tuple[tuple[str, float], ...], ByPattern(_RATIO)] = ()
    verify: bool = True
    seed: Annotated[int, Whole(0)] = 0

    name: ClassVar[str] = "prune_channels"
    trains_on: ClassVar[bool] = True
