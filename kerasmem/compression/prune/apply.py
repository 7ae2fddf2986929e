"""Walking a model, choosing the weights to prune, setting them to zero."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.gradient_evidence import sums_over_samples
from kerasmem.compression.prune.config import CRITERIA, GRADIENT, INPUTS
from kerasmem.compression.prune.in_blocks import prune_in_blocks, why_not
from kerasmem.compression.prune.inputs import input_norms
from kerasmem.compression.prune.patterns import parse_pattern
from kerasmem.compression.prune.plan import Plan, changes, make_plan
from kerasmem.compression.prune.scores import scores
from kerasmem.compression.streams import Streams
from kerasmem.compression.technique import Context
from kerasmem.compression.working import working_copy
from kerasmem.errors import ConfigError
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.prune.config import Prune


def prune_weights(
    model: Any, config: "Prune", context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model whose weights that matter least are zero, and every weight.

    Raises:
        ModelError: if the model has nothing to prune.
        ConfigError: if a pattern matches no weight, or the criterion takes data.
    """
    model = working_copy(model, context)
    if why_not(config) is None:
        streams = Streams(lambda _: None)
        told = prune_in_blocks(model, config, streams)
        streams.assign()
        return model, told()
    plan = make_plan(model, config)
    values = [to_numpy(variable) for variable in plan.variables]
    evidence = gather(model, plan, config.criterion, context.data)
    matters = scores(plan.criterion(config), values, evidence, config.seed)
    masks = choose_masks(plan, config, matters, plan.sparsities)
    for variable, mask in zip(plan.variables, masks, strict=True):
        zero_out(variable, mask)
    return model, changes(model, plan, [1 - mask.mean() for mask in masks])


def choose_masks(
    plan: Plan,
    config: "Prune",
    matters: Sequence[np.ndarray],
    sparsities: Sequence[float],
) -> list[np.ndarray]:
    """Return one bool mask per weight of a plan, False where it is to become zero.

    Args:
        plan: the weights and their groups.
        config: the pattern.
        matters: how much each entry matters, an array per weight.
        sparsities: the share to remove, per weight; the same within a group.
    """
    pattern = parse_pattern(config.pattern)
    axes = plan.axes
    masks: list[Any] = [None] * len(matters)
    for group in plan.groups:
        found = pattern.masks(
            [matters[index] for index in group],
            sparsities[group[0]],
            [axes[index] for index in group],
        )
        for index, mask in zip(group, found, strict=True):
            masks[index] = mask
    return masks


def zero_out(variable: Any, mask: np.ndarray) -> None:
    """Set a variable to zero where `mask` is False."""
    value = to_numpy(variable)
    variable.assign(np.where(mask, value, np.zeros((), value.dtype)))


def gather(
    model: Any, plan: Plan, criterion: str, data: Any
) -> list[np.ndarray] | None:
    """Return what a criterion has to know of each weight, None if nothing.

    Args:
        model: a built model, compiled for a criterion of gradients.
        plan: the weights.
        criterion: a key of `CRITERIA`.
        data: samples; a criterion of gradients takes labels too.

    Raises:
        ConfigError: if the data is missing.
        ModelError: if the model has no loss.
    """
    if CRITERIA[criterion] == INPUTS:
        return input_norms(model, data, plan.chosen)
    if CRITERIA[criterion] == GRADIENT:
        _check_data(criterion, data)
        return sums_over_samples(model, plan.variables, criterion, data)
    return None


def _check_data(criterion: str, data: Any) -> None:
    if data is None:
        raise ConfigError(
            f"The criterion {criterion!r} looks at gradients: give samples with labels "
            "as data=(x, y), or prune in training with km.callbacks.Pruning. Received: "
            "data=None."
        )
