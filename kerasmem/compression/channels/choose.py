"""As many channels as it takes to save a share of what a model costs."""

import math
from collections.abc import Callable
from typing import Any

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.ranking import Ranking, Round
from kerasmem.compression.measure import latencies
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activations import peak_of, sizes_of
from kerasmem.graph.calls import trace
from kerasmem.graph.channels import ChannelSubset, LabelledModel
from kerasmem.graph.channels.cost import all_channels, multiplications
from kerasmem.graph.channels.narrow import Narrow
from kerasmem.graph.rebuild import Rebuild
from kerasmem.stats.bisection import bisect
from kerasmem.types import Dataset, Model

CostShare = Callable[[ChannelSubset], float]
"""Returns the share of a cost that is left."""


def parameters_left(model: Model, labelled: LabelledModel, data: Dataset) -> CostShare:
    """Return what counts the entries of all weights."""
    del labelled, data
    weights, whole = model.weights, model.count_params()
    return lambda subset: sum(map(math.prod, map(subset.weight_shape, weights))) / whole


def multiplications_left(
    model: Model, labelled: LabelledModel, data: Dataset
) -> CostShare:
    """Return what counts the multiplications with kernels."""
    del model, data
    whole = multiplications(labelled, all_channels(labelled))
    return lambda subset: multiplications(labelled, subset) / whole


def memory_left(model: Model, labelled: LabelledModel, data: Dataset) -> CostShare:
    """Return what estimates the most bytes of layer outputs alive at once.

    Of one sample, in inference; see `kerasmem.graph.activations`.

    Raises:
        ConfigError: if the model has axes of unknown length.
    """
    del data
    trace_of_model = trace(model, 1)
    whole = (
        None
        if trace_of_model is None
        else peak_of(trace_of_model, sizes_of(trace_of_model))
    )
    if trace_of_model is None or whole is None:
        raise ConfigError(
            f"The activations of the model {model.name!r} have axes of unknown length, "
            "so their bytes are not known. Give its Input a shape, or another `of`. "
            "Received: of='memory'."
        )
    sizes = sizes_of(trace_of_model)

    def cost_share(subset: ChannelSubset) -> float:
        smaller = dict(sizes)
        for call in trace_of_model.calls:
            labels_of = labelled.calls.get(id(call.nodes[-1])) if call.nodes else None
            outputs = labels_of.outputs if labels_of else []  # no labels: a cast
            for tensor, labels in zip(call.outputs, outputs, strict=False):
                size = sizes[id(tensor)] or 0
                for old, new in zip(labels.shape, subset.shape(labels), strict=True):
                    size = size if old == new else size // (old or 1) * (new or 1)
                smaller[id(tensor)] = size
        return (peak_of(trace_of_model, smaller) or 0) / whole

    return cost_share


def latency_left(model: Model, labelled: LabelledModel, data: Dataset) -> CostShare:
    """Return what measures the time of a forward pass, of models that are really made.

    The smaller model and a copy of the whole one take turns.

    Raises:
        ConfigError: if the model has axes of unknown length and there is no data.
    """
    whole = Rebuild(Narrow(labelled, all_channels(labelled))).run(model)

    def cost_share(subset: ChannelSubset) -> float:
        smaller = Rebuild(Narrow(labelled, subset)).run(model)
        before, after = latencies([whole, smaller], data)
        if not (before and after):
            raise ConfigError(
                f"The inputs of the model {model.name!r} have axes of unknown length, "
                "so its latency cannot be measured. Give samples as data=. Received: "
                "of='latency', data=None."
            )
        return after["latency_ms"] / before["latency_ms"]

    return cost_share


MEASURES = {
    "parameters": parameters_left,
    "multiplications": multiplications_left,
    "memory": memory_left,
    "latency": latency_left,
}


_HALVINGS = {"latency": 5}
_USUAL_HALVINGS = 10
_WHOLE_PERCENT = 0.01


def kept_channels(
    model: Model,
    labelled: LabelledModel,
    ranking: Ranking,
    config: PruneChannels,
    this_round: Round,
    data: Dataset,
) -> ChannelSubset:
    """Return the channels that stay.

    Raises:
        ConfigError: if what the config counts cannot be counted in this model.
        ModelError: if not even the fewest channels save as much as is asked for.
    """
    if config.of == "channels":
        return ranking.select_as_configured()
    cost_share = MEASURES[config.of](model, labelled, data)
    target_share = 1 - this_round.share(config.ratio)
    return fewest(ranking.select, cost_share, target_share, config.of)


def fewest(
    select: Callable[[float], Any],
    cost_share: Callable[[Any], float],
    wanted: float,
    of: str,
) -> Any:
    """Return the most channels, by bisection, whose `cost_share` is `wanted`.

    Args:
        select: returns the channels that stay if a share of them goes.
        cost_share: returns the share of a cost that these leave.
        wanted: the share that is to stay, in (0, 1].
        of: what is counted, for the text of the error.

    Raises:
        ModelError: if not even the fewest channels save as much as is asked for.
    """
    share = bisect(
        lambda share: cost_share(select(share)) <= wanted,
        good=1.0,
        bad=0.0,
        halvings=_HALVINGS.get(of, _USUAL_HALVINGS),
    )
    if share < 1.0:
        return select(share)
    least_left = select(1 - 2**-_USUAL_HALVINGS)
    least = cost_share(least_left)
    if least > wanted:
        raise ModelError(
            f"Removing as many channels as can go leaves {_percent(least)} of "
            f"the {of}: channels of inputs and outputs stay, and what is next to "
            f"them. Received: PruneChannels of {of}, of which {_percent(wanted)} "
            "are to stay."
        )
    return least_left


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _WHOLE_PERCENT else f"{100 * share:.2g}%"
