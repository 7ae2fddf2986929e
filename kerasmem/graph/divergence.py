"""How far apart what two models give is: the Kullback-Leibler divergence, in nats."""

from typing import Any

import keras
import numpy as np

from kerasmem.graph.outputs import ModelOutput, OutputForm, OutputTask
from kerasmem.graph.values import to_numpy
from kerasmem.types import Tensors

_NEAR, _LEAST = 1e-3, float(np.finfo(np.float32).tiny)


def log_probabilities(outputs: Tensors) -> Any:
    """Return the logarithms of probabilities, float32, of logits or probabilities.

    Args:
        outputs: a tensor; what lies along its last axis excludes each other.
    """
    ops = keras.ops
    outputs = ops.cast(outputs, "float32")
    first = to_numpy(ops.reshape(outputs, (-1, outputs.shape[-1]))[:1])
    if (first >= 0).all() and abs(first.sum() - 1) < _NEAR:
        return ops.log(ops.maximum(outputs, _LEAST))
    return ops.log_softmax(outputs, axis=-1)


def kl_divergence(exact: Any, other: Any) -> Any:
    """Return KL(exact || other) over the last axis, of log-probabilities, in nats."""
    ops = keras.ops
    share = ops.exp(exact)
    # A token that is ruled out has a logarithm of minus infinity.
    terms = ops.where(share > 0, share * (exact - other), ops.zeros_like(share))
    return ops.sum(terms, axis=-1)


def divergence(exact: Any, other: Any, kind: ModelOutput, variance: float) -> Any:
    """Return how far an output of one model is from that of another, by place.

    Of classes it is the divergence of their probabilities, of independent probabilities
    the sum of theirs; of other values half of the squared error over their variance,
    which is the divergence of normal distributions so far apart.

    Args:
        exact: what the reference gives, (batch, ..., values).
        other: what the other one gives, of the same shape.
        kind: what the values are.
        variance: above 0, of values that are neither classes nor probabilities.

    Returns:
        A tensor, float32, (batch, ...).
    """
    ops = keras.ops
    if kind.form is OutputForm.SOFTMAX or kind.task is OutputTask.CATEGORICAL:
        return kl_divergence(log_probabilities(exact), log_probabilities(other))
    exact, other = ops.cast(exact, "float32"), ops.cast(other, "float32")
    if kind.form is OutputForm.SIGMOID or kind.task is OutputTask.BINARY:
        if kind.form is OutputForm.LINEAR:
            exact, other = ops.sigmoid(exact), ops.sigmoid(other)
        pairs = (ops.stack([p, 1 - p], axis=-1) for p in (exact, other))
        exact, other = (ops.log(ops.maximum(p, _LEAST)) for p in pairs)
        return ops.sum(kl_divergence(exact, other), axis=-1)
    error = ops.sum(ops.square(exact - other), axis=-1)
    return error / (2 * variance)
