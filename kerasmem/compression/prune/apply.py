"""Walking a model, choosing the weights to prune, setting the smallest to zero."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.compression.prune.math import global_masks, magnitude_mask
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.kernels import is_depthwise, is_kernel
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.prune.config import Prune


def prune_weights(model: Any, choice: "Prune") -> list[WeightChange]:
    """Set the smallest weights of `model` to zero, in place.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ModelError: if the model has no kernel to prune.
        ConfigError: if a pattern of `exclude` matches no weight.
    """
    chosen = prunable(model, choice)
    masks = masks_for([w.variable for w in chosen], choice, choice.sparsity)
    for weight, mask in zip(chosen, masks, strict=True):
        zero_out(weight.variable, mask)
    zeros = {id(w.variable): 1 - m.mean() for w, m in zip(chosen, masks, strict=True)}
    return [_change(w, choice, zeros.get(id(w.variable))) for w in weights(model)]


def prunable(model: Any, choice: "Prune") -> list[Weight]:
    """Return the weights of `model` that `choice` is about.

    Raises:
        ModelError: if there are none.
        ConfigError: if a pattern of `exclude` matches no weight.
    """
    everything = list(weights(model))
    for pattern in choice.exclude:
        if not any(re.search(pattern, weight.path) for weight in everything):
            raise ConfigError(
                f"No weight of the model {model.name!r} has a path that matches. "
                f"Received: exclude={pattern!r}."
            )
    chosen = [weight for weight in everything if why_not(weight, choice) is None]
    if not chosen:
        raise ModelError(
            f"The model {model.name!r} has nothing to prune: none of its "
            f"{len(everything)} weights is a float kernel or embedding table that is "
            "not excluded. Prune before quantizing."
        )
    return chosen


def why_not(weight: Weight, choice: "Prune") -> str | None:
    """Return why a weight is left alone, or None if it is pruned."""
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return f"is {dtype} already"
    if not is_kernel(weight):
        return "is no kernel or embedding table"
    if is_depthwise(weight):
        return "is depthwise: few weights, each one matters"
    if any(re.search(pattern, weight.path) for pattern in choice.exclude):
        return "is excluded"
    return None


def masks_for(
    variables: Iterable[Any], choice: "Prune", sparsity: float
) -> list[np.ndarray]:
    """Return one bool mask per variable, False where it is to become zero."""
    values = [to_numpy(variable) for variable in variables]
    if choice.scope == "global":
        return global_masks(values, sparsity)
    return [magnitude_mask(value, sparsity) for value in values]


def zero_out(variable: Any, mask: np.ndarray) -> None:
    """Set a variable to zero where `mask` is False."""
    value = to_numpy(variable)
    variable.assign(np.where(mask, value, np.zeros((), value.dtype)))


def _change(weight: Weight, choice: "Prune", zeros: float | None) -> WeightChange:
    pruned = zeros is not None
    return WeightChange(
        layer=weight.block.name,
        weight=weight.path,
        technique="prune",
        changed=pruned,
        detail=f"{zeros:.1%} zero" if pruned else str(why_not(weight, choice)),
        before_bytes=weight.nbytes,
        after_bytes=weight.nbytes,
    )
