"""Walking a model, giving its weights few values."""

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.compression.account import account
from kerasmem.compression.cluster.codebook import few_values
from kerasmem.compression.noise import sqnr_db
from kerasmem.compression.regular_expressions import check_all_mean_one, means
from kerasmem.errors import ModelError
from kerasmem.graph.kernels import is_depthwise, is_embedding, is_kernel, reduced_axes
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.cluster.config import Cluster

NAME = "cluster"


def cluster_weights(model: Any, choice: "Cluster") -> list[WeightChange]:
    """Give the kernels of `model` few values, in place.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ModelError: if the model has nothing to cluster, or a weight is not finite.
        ConfigError: if a pattern matches no weight.
    """
    clustered, left_alone = chosen(model, choice)
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
            choice.n,
            start=choice.start,
            axis=channel_axis(weight, choice),
            keep_zeros=choice.keep_zeros,
            rng=np.random.default_rng(choice.seed),
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
    return changes + [
        account(weight, NAME, why, changed=False) for weight, why in left_alone
    ]


def chosen(
    model: Any, choice: "Cluster"
) -> tuple[list[Weight], list[tuple[Weight, str]]]:
    """Return the weights that are clustered, and the others, each with the reason.

    Raises:
        ModelError: if there is none to cluster.
        ConfigError: if a pattern matches no weight.
    """
    everything = list(weights(model))
    patterns = {"include": choice.include, "exclude": choice.exclude}
    check_all_mean_one(model, everything, patterns)
    reasons = [(weight, _why_not(weight, choice)) for weight in everything]
    clustered = [weight for weight, reason in reasons if reason is None]
    if not clustered:
        raise ModelError(
            f"The model {model.name!r} has nothing to cluster: none of its "
            f"{len(everything)} weights is a float kernel or embedding table that is "
            "not excluded. Cluster before quantizing."
        )
    return clustered, [(weight, why) for weight, why in reasons if why is not None]


def channel_axis(weight: Weight, choice: "Cluster") -> int | None:
    """Return the axis of the channels that have values of their own, None if none has.

    Of a kernel it is the last axis that no output sums over. In an embedding table all
    words have the same: theirs are too short for some of their own.
    """
    if choice.granularity == "tensor" or is_embedding(weight):
        return None
    rank = len(weight.variable.shape)
    return max(set(range(rank)) - set(reduced_axes(weight)), default=rank - 1)


def _why_not(weight: Weight, choice: "Cluster") -> str | None:
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return f"is {dtype} already"
    if means(choice.exclude, weight):
        return "is excluded"
    if len(weight.variable.shape) >= 2 and means(choice.include, weight):
        return None
    if not is_kernel(weight):
        return "is no kernel or embedding table"
    if is_depthwise(weight):
        return "is depthwise: few weights, each one matters"
    return None
