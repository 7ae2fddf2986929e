"""BatchNormalization that sees the activations of the model as it is now.

Pruned or rounded weights make other activations than those that the statistics were
gathered on.

Source: Sun et al., "Hybrid 8-bit floating point (HFP8) training and inference for deep
neural networks", 2019.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.shadow import shadow
from kerasmem.compression.account import account
from kerasmem.compression.quantize.repair.side_by_side import BATCH_SIZE, not_finite
from kerasmem.errors import ModelError
from kerasmem.files.data import input_batches
from kerasmem.graph.layers import sublayers, weights
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

NAME = "reestimate_batch_norm"
_NO_STATISTIC = "is no statistic of a BatchNormalization that is called"


class _Moments:
    """Count, mean and sum of squared differences from it, of each channel."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0

    def add(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add values of shape `(n, channels)`; return their own mean and variance."""
        count, mean, variance = len(values), values.mean(0), values.var(0)
        total = self.count + count
        apart = mean - self.mean
        self.squares = (
            self.squares + variance * count + apart**2 * self.count * count / total
        )
        self.mean = self.mean + apart * count / total
        self.count = total
        return mean, variance


def reestimate(model: Any, data: Any, samples: int) -> list[WeightChange]:
    """Gather the statistics of every BatchNormalization anew, in place.

    In the pass over the samples each of them normalizes by the batch, as in training;
    all else runs as in inference.

    Args:
        model: a built model.
        data: samples in any form that `kerasmem.files.data` lists.
        samples: most samples to look at.

    Returns:
        Every weight, changed or left alone.

    Raises:
        DataError: if what goes into one is not finite.
        ModelError: if there is none, or none that is called.
    """
    norms = [
        x for x in sublayers(model) if isinstance(x, keras.layers.BatchNormalization)
    ]
    seen = {id(norm): _Moments() for norm in norms}
    with ExitStack() as hooks:
        for norm in norms:
            wrapper = partial(_by_batch, norm, seen[id(norm)])
            hooks.callback(shadow(norm, "call", wrapper))
        hooks.enter_context(current().inference())
        for batch in input_batches(data, samples, BATCH_SIZE):
            model(batch, training=False)
    called = [norm for norm in norms if seen[id(norm)].count]
    if not called:
        raise ModelError(
            f"The model {model.name!r} has no BatchNormalization to estimate anew. "
            f"Received: {len(norms)} of them, none called."
        )
    for norm in called:
        moments = seen[id(norm)]
        norm.moving_mean.assign(moments.mean)
        norm.moving_variance.assign(moments.squares / moments.count)
    anew = {id(v) for n in called for v in (n.moving_mean, n.moving_variance)}
    return [
        account(weight, NAME, "gathered anew", changed=True)
        if id(weight.variable) in anew
        else account(weight, NAME, _NO_STATISTIC, changed=False)
        for weight in weights(model)
    ]


def _by_batch(
    norm: Any,
    moments: _Moments,
    original: Callable[..., Any],
    inputs: Any,
    *args: Any,
    mask: Any = None,
    **kwargs: Any,
) -> Any:
    """Normalize by the batch; what a mask leaves out does not count, as in training."""
    values = np.moveaxis(to_numpy(inputs).astype(np.float64), norm.axis, -1)
    rows = values.reshape(-1, values.shape[-1])
    if mask is not None:
        # Keras's masks go with channels that come last, and with no others.
        rows = values[to_numpy(mask).astype(bool)]
    if not np.isfinite(rows).all():
        raise not_finite(norm)
    if not len(rows):
        return original(inputs, *args, mask=mask, **kwargs)
    mean, variance = moments.add(rows)
    outputs = keras.ops.batch_normalization(
        keras.ops.cast(inputs, "float32"),
        keras.ops.convert_to_tensor(mean, "float32"),
        keras.ops.convert_to_tensor(variance, "float32"),
        axis=norm.axis,
        offset=norm.beta if norm.center else None,
        scale=norm.gamma if norm.scale else None,
        epsilon=norm.epsilon,
    )
    return keras.ops.cast(outputs, norm.compute_dtype)
