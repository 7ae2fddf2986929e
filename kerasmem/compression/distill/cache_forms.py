"""The form in which a cache keeps answers: whole, or the few that matter."""

from typing import Any

import numpy as np
from keras import ops


def whole(kept: Any, classes: int) -> Any:
    """Return kept answers as a float32 tensor of all classes.

    Args:
        kept: a tensor, or what `top` made of one.
        classes: length of the last axis.
    """
    if not isinstance(kept, dict):
        return ops.cast(kept, "float32")
    rest = ops.cast(kept["rest"], "float32")
    above = ops.cast(kept["values"], "float32") - rest
    places = ops.one_hot(ops.cast(kept["places"], "int32"), classes, dtype="float32")
    return rest + ops.sum(places * ops.expand_dims(above, -1), axis=-2)


def top(logits: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Return the largest logits, where they are, and one value for all others.

    That value gives the others together the probability that they had at temperature
    1, in equal parts.

    Args:
        logits: (..., classes).
        count: how many are kept, less than the classes.
    """
    places = np.argpartition(-logits, count - 1, axis=-1)[..., :count]
    values = np.take_along_axis(logits, places, axis=-1)
    others = logits.astype("float64")
    np.put_along_axis(others, places, -np.inf, axis=-1)
    highest = others.max(axis=-1, keepdims=True)
    mean = np.exp(others - highest).sum(axis=-1, keepdims=True)
    mean /= logits.shape[-1] - count
    rest = highest + np.log(mean)
    return {"places": places, "values": values, "rest": rest.astype("float32")}
