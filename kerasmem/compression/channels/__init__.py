"""Configuration of structured pruning."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from kerasmem.checks import ByPattern, Patterns, Real, Whole
from kerasmem.compression.technique import Technique

COUNTED = ("channels", "parameters", "multiplications", "memory")
CRITERIA = ("l1", "l2", "group", "batch_norm", "fpgm", "taylor", "random")
SCOPES = ("layer", "global", "isomorphic")
_RATIO = Real("the fraction of channels to remove,", least=0, below=1)


@dataclass(frozen=True)
class PruneChannels(Technique):
    """Structured pruning: removes the least important channels, units and heads.

    The result is a plain Keras model with smaller layers and a new optimizer. Its
    outputs are compared with those from the original model with the same channels set
    to zero.

    Sources: Li, Kadav, Durdanovic, Samet and Graf, "Pruning Filters for Efficient
    ConvNets", 2017 (L1); He, Liu, Wang, Hu and Yang, "Filter Pruning via Geometric
    Median for Deep Convolutional Neural Networks Acceleration" (FPGM), 2019; Liu et
    al., "Learning Efficient Convolutional Networks through Network Slimming", 2017
    (batch_norm); Molchanov, Tyree, Karras, Aila and Kautz, "Pruning Convolutional
    Neural Networks for Resource Efficient Inference", 2017 (rounds); Fang, Ma, Mi and
    Wang, "Isomorphic Pruning for Vision Models", 2024.

    Args:
        ratio: Float in [0, 1). Fraction of the channels to remove, or of the quantity
            that `of` selects.
        of: Quantity of which the fraction is removed: `"channels"`, `"parameters"`,
            `"multiplications"` or `"memory"` (estimated activation bytes of one sample
            in inference). Defaults to `"channels"`.
        criterion: Importance score of a channel: `"l1"` or `"l2"` (norm of the weights
            that compute the channel); `"group"` (norm of all connected weights);
            `"batch_norm"` (its scale); `"fpgm"` (distance to the other channels);
            `"taylor"` (gradient times weight); `"random"` (baseline). `"taylor"` needs
            a loss and labeled `data`. Defaults to `"l2"`.
        scope: Channels that are ranked together: `"layer"` (the same fraction of every
            layer), `"global"` (all channels) or `"isomorphic"` (layers with the same
            structure, such as the inner layers of all blocks). Defaults to `"layer"`.
        rounds: Integer in [1, 1000]. Number of pruning rounds, each followed by the
            fine-tuning epochs. Each round removes the same fraction of the remaining
            channels. Defaults to 1.
        round_to: Integer, at least 1. The number of remaining channels of a layer is a
            multiple of this number, unless all are kept. Defaults to 1.
        min_channels: Integer, at least 1. Minimum number of channels to keep per layer.
            Defaults to 1.
        ignore: Regular expressions of weight paths. Output channels of matching weights
            are kept.
        ratios: Pairs of a regular expression and a ratio. Override `ratio` for weights
            whose path matches; the first match counts.
        verify: Boolean. Whether to check that the outputs equal those of the original
            model with the same channels set to zero. Raises `ModelError` if they
            differ. Defaults to `True`.
        seed: Integer, at least 0. Random seed of the criterion `"random"`; the seed of
            `km.compress` (`--seed`) has no effect on it. Defaults to 0.

    Raises:
        ConfigError: If a value is out of range.

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
