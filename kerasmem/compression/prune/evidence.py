"""What a criterion has to know of each entry, beside its value."""

from typing import Any

import numpy as np

from kerasmem.compression.gradient_evidence import sums_over_samples
from kerasmem.compression.prune.inputs import input_norms
from kerasmem.compression.prune.plan import Plan
from kerasmem.compression.prune.scores import CRITERIA, GRADIENT, INPUTS
from kerasmem.errors import ConfigError


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
