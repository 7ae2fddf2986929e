"""Walking a model, choosing the weights to prune, setting them to zero."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.account import account
from kerasmem.compression.prune.evidence import gather
from kerasmem.compression.prune.patterns import parse_pattern
from kerasmem.compression.prune.plan import Plan, make_plan
from kerasmem.compression.prune.scores import scores
from kerasmem.graph.layers import weights
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.prune.config import Prune


_NOTHING_GOES = "has too few entries in a row, or too large ones, for any to go"


def prune_weights(model: Any, choice: "Prune", data: Any = None) -> list[WeightChange]:
    """Set the weights of `model` that matter least to zero, in place.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ModelError: if the model has nothing to prune.
        ConfigError: if a pattern matches no weight, or the criterion takes data.
    """
    plan = make_plan(model, choice)
    values = [to_numpy(variable) for variable in plan.variables]
    evidence = gather(model, plan, choice.criterion, data)
    matters = scores(plan.criterion(choice), values, evidence, choice.seed)
    masks = choose_masks(plan, choice, matters, plan.sparsities)
    for variable, mask in zip(plan.variables, masks, strict=True):
        zero_out(variable, mask)
    return changes(model, plan, [1 - mask.mean() for mask in masks])


def changes(model: Any, plan: Plan, shares: Sequence[float]) -> list[WeightChange]:
    """Return one change per weight of the model, with its share of zeros or why not.

    Args:
        model: the model.
        plan: which of its weights are pruned.
        shares: the share of zeros in each of them, 0 to 1.
    """
    details = {id(weight.variable): reason for weight, reason in plan.left_alone}
    pruned: set[int] = set()
    for variable, share in zip(plan.variables, shares, strict=True):
        details[id(variable)] = f"{share:.1%} zero" if share else _NOTHING_GOES
        if share:
            pruned.add(id(variable))
    return [
        account(
            weight,
            "prune",
            details[id(weight.variable)],
            changed=id(weight.variable) in pruned,
        )
        for weight in weights(model)
    ]


def choose_masks(
    plan: Plan,
    choice: "Prune",
    matters: Sequence[np.ndarray],
    sparsities: Sequence[float],
) -> list[np.ndarray]:
    """Return one bool mask per weight of a plan, False where it is to become zero.

    Args:
        plan: the weights and their groups.
        choice: the pattern.
        matters: how much each entry matters, an array per weight.
        sparsities: the share to remove, per weight; the same within a group.
    """
    pattern = parse_pattern(choice.pattern)
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
