"""Kullback-Leibler divergence between the outputs of two models, in nats."""

from typing import Any

import keras
import numpy as np

from kerasmem.graph.outputs import ModelOutput, OutputForm, OutputTask
from kerasmem.graph.values import to_numpy
from kerasmem.types import Tensor, Tensors

_NEAR, _LEAST = 1e-3, float(np.finfo(np.float32).tiny)


def log_probabilities(outputs: Tensors) -> Any:
    """Returns float32 log-probabilities of logits or probabilities (last axis)."""
    ops = keras.ops
    outputs = ops.cast(outputs, "float32")
    first = to_numpy(ops.reshape(outputs, (-1, outputs.shape[-1]))[:1])
    if (first >= 0).all() and abs(first.sum() - 1) < _NEAR:
        return ops.log(ops.maximum(outputs, _LEAST))
    return ops.log_softmax(outputs, axis=-1)


def kl_divergence(exact: Tensor, other: Tensor) -> Any:
    """Returns KL(exact || other) of log-probabilities over the last axis, in nats."""
    ops = keras.ops
    share = ops.exp(exact)
    # A masked token has the log-probability minus infinity.
    terms = ops.where(share > 0, share * (exact - other), ops.zeros_like(share))
    return ops.sum(terms, axis=-1)


def divergence(exact: Tensor, other: Tensor, kind: ModelOutput, variance: float) -> Any:
    """Returns the divergence between outputs of two models, reduced over the last axis.

    For classes, this is the KL divergence. For independent probabilities, it is the sum
    of their KL divergences. For other values, it is the squared error divided by twice
    the variance, which is the KL divergence of normal distributions.
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
