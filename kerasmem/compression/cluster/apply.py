"""Walking a model, giving its weights few values."""

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.compression.account import account, sqnr_db
from kerasmem.compression.cluster.kmeans import few_values
from kerasmem.compression.regular_expressions import (
    check_every_pattern_matches,
    matches,
)
from kerasmem.compression.technique import Context
from kerasmem.compression.working import working_copy
from kerasmem.errors import ModelError
from kerasmem.graph.kernels import is_depthwise, is_embedding, is_kernel, reduced_axes
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.cluster.config import Cluster

NAME = "cluster"


def cluster_weights(
    model: Any, config: "Cluster", context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model whose kernels have few values, and every weight of it.

    Raises:
        ModelError: if the model has nothing to cluster, or a weight is not finite.
        ConfigError: if a pattern matches no weight.
    """
    model = working_copy(model, context)
    clustered, left_alone = chosen(model, config)
    values = [to_numpy(weight.variable) for weight in clustered]
    for weight, value in zip(clustered, values, strict=True):
        if not np.isfinite(value).all():
            raise ModelError(
                f"The weight {weight.path!r} has entries that are NaN or infinite, "
                "which no value stands for. Train the model anew."
            )
    changes = []
    for weight, value in zip(clustered, values, strict=True):
        rounded = few_values(
            value,
            config.n,
            start=config.start,
            axis=channel_axis(weight, config),
            keep_zeros=config.keep_zeros,
            rng=np.random.default_rng(config.seed),
        )
        weight.variable.assign(rounded)
        count = len(np.unique(rounded))
        noise = sqnr_db(value, rounded)
        changes.append(
            account(
                weight,
                NAME,
                f"{count} values",
                changed=not np.array_equal(value, rounded),
                sqnr_db=noise,
            )
        )
    return model, changes + [
        account(weight, NAME, why, changed=False) for weight, why in left_alone
    ]


def chosen(
    model: Any, config: "Cluster"
) -> tuple[list[Weight], list[tuple[Weight, str]]]:
    """Return the weights that are clustered, and the others, each with the reason.

    Raises:
        ModelError: if there is none to cluster.
        ConfigError: if a pattern matches no weight.
    """
    everything = list(weights(model))
    patterns = {"include": config.include, "exclude": config.exclude}
    check_every_pattern_matches(model, everything, patterns)
    reasons = [(weight, _why_not(weight, config)) for weight in everything]
    clustered = [weight for weight, reason in reasons if reason is None]
    if not clustered:
        raise ModelError(
            f"The model {model.name!r} has nothing to cluster: none of its "
            f"{len(everything)} weights is a float kernel or embedding table that is "
            "not excluded. Cluster before quantizing."
        )
    return clustered, [(weight, why) for weight, why in reasons if why is not None]


def channel_axis(weight: Weight, config: "Cluster") -> int | None:
    """Return the axis of the channels that have values of their own, None if none has.

    Of a kernel it is the last axis that no output sums over. In an embedding table all
    words have the same: theirs are too short for some of their own.
    """
    if config.granularity == "tensor" or is_embedding(weight):
        return None
    rank = len(weight.variable.shape)
    return max(set(range(rank)) - set(reduced_axes(weight)), default=rank - 1)


def _why_not(weight: Weight, config: "Cluster") -> str | None:
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return f"is {dtype} already"
    if matches(config.exclude, weight):
        return "is excluded"
    if len(weight.variable.shape) >= 2 and matches(config.include, weight):
        return None
    if not is_kernel(weight):
        return "is no kernel or embedding table"
    if is_depthwise(weight):
        return "is depthwise: few weights, each one matters"
    return None
