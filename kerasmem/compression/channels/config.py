"""The choice of which channels disappear."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from kerasmem.compression.channels.apply import prune_channels
from kerasmem.compression.channels.measures import MEASURES
from kerasmem.compression.channels.ranking import SCOPES
from kerasmem.compression.channels.rounds import Round
from kerasmem.compression.channels.scores import CRITERIA
from kerasmem.compression.regular_expressions import (
    check_regular_expression,
    regular_expressions,
)
from kerasmem.compression.technique import Remake, Technique
from kerasmem.errors import ConfigError
from kerasmem.records import WeightChange

COUNTED = ("channels", *MEASURES)
_MOST_ROUNDS = 1000


@dataclass(frozen=True)
class PruneChannels(Remake):
    """Remove the channels, units and heads that matter least: layers become narrower.

    The result is a plain Keras model with smaller layers; the optimizer's moments are
    taken along. That it computes what the original does without these channels is
    checked.

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
        round_to: what stays of a layer is a multiple of this.
        min_channels: at least so many channels of a layer stay.
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

    ratio: float
    _: KW_ONLY
    of: str = "channels"
    criterion: str = "l2"
    scope: str = "layer"
    rounds: int = 1
    round_to: int = 1
    min_channels: int = 1
    ignore: tuple[str, ...] = ()
    ratios: tuple[tuple[str, float], ...] = ()
    verify: bool = True
    seed: int = 0

    name: ClassVar[str] = "prune_channels"
    trains_on: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_ratio("ratio", self.ratio)
        self._check_allowed({"of": COUNTED, "criterion": CRITERIA, "scope": SCOPES})
        for field in ("rounds", "round_to", "min_channels"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"The {field} of PruneChannels is a whole number from 1. "
                    f"Received: {field}={value!r}."
                )
        ignore = regular_expressions("PruneChannels", "ignore", self.ignore)
        object.__setattr__(self, "ignore", ignore)
        if self.rounds > _MOST_ROUNDS:
            raise ConfigError(
                f"PruneChannels goes in at most {_MOST_ROUNDS} rounds. Received: "
                f"rounds={self.rounds!r}."
            )
        object.__setattr__(self, "ratios", _ratios(self.ratios))

    def applied(self, model: Any, data: Any = None) -> tuple[Any, list[WeightChange]]:
        """Return a model with fewer channels, and what became of every weight.

        The model that is handed in is not touched.

        Raises:
            ConfigError: if data is missing that the criterion takes.
            ModelError: if nothing can be removed, or not as much as is asked for, or
                the check fails.
        """
        changes = []
        for stage in self.stages():
            model, changed = stage.applied(model, data)
            changes += changed
        return model, changes

    def stages(self) -> tuple[Technique, ...]:
        """Return the rounds, one by one."""
        sizes: dict[int, int] = {}
        count = self.rounds
        return tuple(
            _Stage(self, Round(number, count, sizes)) for number in range(1, count + 1)
        )


@dataclass(frozen=True)
class _Stage(Technique):
    """One round of a choice."""

    choice: PruneChannels
    turn: Round

    name: ClassVar[str] = PruneChannels.name
    trains_on: ClassVar[bool] = True

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        return self.choice.apply(model, data)

    def applied(self, model: Any, data: Any = None) -> tuple[Any, list[WeightChange]]:
        pruned = prune_channels(model, self.choice, data, self.turn)
        return pruned.model, pruned.changes


def _ratios(given: Any) -> tuple[tuple[str, float], ...]:
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given)
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(
                "The ratios of PruneChannels are pairs of a regular expression and a "
                f"ratio. Received: {pair!r}."
            )
        check_regular_expression("PruneChannels", "ratios", pair[0])
        _check_ratio("ratios", pair[1])
    return tuple((str(pattern), ratio) for pattern, ratio in pairs)


def _check_ratio(field: str, ratio: Any) -> None:
    is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if not is_number or not 0 <= ratio < 1:
        raise ConfigError(
            f"The {field} of PruneChannels: the share of channels that goes is at "
            f"least 0 and less than 1. Received: {field}={ratio!r}."
        )
