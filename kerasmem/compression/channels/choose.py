"""Chooses the number of channels for a target fraction of a model's cost."""

import math
from collections.abc import Callable
from typing import Any

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.ranking import Ranking, Round
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activations import peak_of, sizes_of
from kerasmem.graph.calls import trace
from kerasmem.graph.channels import ChannelSubset, LabelledModel
from kerasmem.graph.channels.cost import all_channels, multiplications
from kerasmem.stats.bisection import bisect
from kerasmem.types import Model

CostShare = Callable[[ChannelSubset], float]
"""Function that returns the remaining fraction of a cost."""


def parameters_left(model: Model, labelled: LabelledModel) -> CostShare:
    """Returns a function for the remaining fraction of parameters."""
    del labelled
    weights, whole = model.weights, model.count_params()
    return lambda subset: sum(map(math.prod, map(subset.weight_shape, weights))) / whole


def multiplications_left(model: Model, labelled: LabelledModel) -> CostShare:
    """Returns a function for the remaining fraction of multiplications with kernels."""
    del model
    whole = multiplications(labelled, all_channels(labelled))
    return lambda subset: multiplications(labelled, subset) / whole


def memory_left(model: Model, labelled: LabelledModel) -> CostShare:
    """Returns a function for the remaining fraction of peak activation memory.

    Estimates the peak for one sample in inference. See `kerasmem.graph.activations`.
    """
    trace_of_model = trace(model, 1)
    whole = (
        None
        if trace_of_model is None
        else peak_of(trace_of_model, sizes_of(trace_of_model))
    )
    if trace_of_model is None or whole is None:
        raise ConfigError(
            f"The activations of the model {model.name!r} have axes of unknown length, "
            "so their size is unknown. Next: set the shape of its Input, or use "
            "another `of`. Received: of='memory'."
        )
    sizes = sizes_of(trace_of_model)

    def cost_share(subset: ChannelSubset) -> float:
        smaller = dict(sizes)
        for call in trace_of_model.calls:
            labels_of = labelled.calls.get(id(call.nodes[-1])) if call.nodes else None
            outputs = labels_of.outputs if labels_of else []  # a cast has no labels
            for tensor, labels in zip(call.outputs, outputs, strict=False):
                size = sizes[id(tensor)] or 0
                for old, new in zip(labels.shape, subset.shape(labels), strict=True):
                    size = size if old == new else size // (old or 1) * (new or 1)
                smaller[id(tensor)] = size
        return (peak_of(trace_of_model, smaller) or 0) / whole

    return cost_share


MEASURES = {
    "parameters": parameters_left,
    "multiplications": multiplications_left,
    "memory": memory_left,
}


_HALVINGS = 10
_WHOLE_PERCENT = 0.01


def kept_channels(
    model: Model,
    labelled: LabelledModel,
    ranking: Ranking,
    config: PruneChannels,
    this_round: Round,
) -> ChannelSubset:
    """Returns the remaining channels."""
    if config.of == "channels":
        return ranking.select_as_configured()
    cost_share = MEASURES[config.of](model, labelled)
    target_share = 1 - this_round.share(config.ratio)
    return fewest(ranking.select, cost_share, target_share, config.of)


def fewest(
    select: Callable[[float], Any],
    cost_share: Callable[[Any], float],
    wanted: float,
    of: str,
) -> Any:
    """Returns the most channels with a `cost_share` of at most `wanted`, by bisection.

    `select` maps a fraction to remove to the remaining channels. `of` is the name of
    the cost.
    """
    share = bisect(
        lambda share: cost_share(select(share)) <= wanted,
        good=1.0,
        bad=0.0,
        halvings=_HALVINGS,
    )
    if share < 1.0:
        return select(share)
    least_left = select(1 - 2**-_HALVINGS)
    least = cost_share(least_left)
    if least > wanted:
        raise ModelError(
            f"Removing all removable channels leaves {_percent(least)} of the {of}. "
            "Channels of inputs and outputs, and channels connected to them, are kept. "
            f"Received: PruneChannels of {of}, with {_percent(wanted)} to keep."
        )
    return least_left


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _WHOLE_PERCENT else f"{100 * share:.2g}%"
