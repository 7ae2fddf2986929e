"""As many channels as it takes."""

from typing import TYPE_CHECKING, Any

from kerasmem.compression.channels.measures import MEASURES, Left
from kerasmem.compression.channels.ranking import Ranking
from kerasmem.compression.channels.rounds import Round
from kerasmem.errors import ModelError
from kerasmem.graph.channels import Kept, LabelledModel

if TYPE_CHECKING:
    from kerasmem.compression.channels.config import PruneChannels

_HALVINGS = {"latency": 5}
_USUAL_HALVINGS = 10
_WHOLE_PERCENT = 0.01


def kept_channels(
    model: Any,
    found: LabelledModel,
    ranking: Ranking,
    choice: "PruneChannels",
    turn: Round,
    data: Any,
) -> Kept:
    """Return the channels that stay.

    Raises:
        ConfigError: if what the choice counts cannot be counted in this model.
        ModelError: if not even the fewest channels save as much as is asked for.
    """
    if choice.of == "channels":
        return ranking.kept_as_asked()
    left = MEASURES[choice.of](model, found, data)
    wanted = 1 - turn.share(choice.ratio)
    return _fewest(ranking, left, wanted, choice.of)


def _fewest(ranking: Ranking, left: Left, wanted: float, of: str) -> Kept:
    """Return the most channels found by bisection with which `left` is `wanted`."""
    halvings = _HALVINGS.get(of, _USUAL_HALVINGS)
    low, high, best = 0.0, 1.0, None
    for _ in range(halvings):
        middle = (low + high) / 2
        kept = ranking.kept(middle)
        if left(kept) <= wanted:
            high, best = middle, kept
        else:
            low = middle
    if best is None:
        best = ranking.kept(1 - 2**-_USUAL_HALVINGS)
        least = left(best)
        if least > wanted:
            raise ModelError(
                f"Removing as many channels as can go leaves {_percent(least)} of "
                f"the {of}: channels of inputs and outputs stay, and what is next to "
                f"them. Received: PruneChannels of {of}, of which {_percent(wanted)} "
                "are to stay."
            )
    return best


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _WHOLE_PERCENT else f"{100 * share:.2g}%"
