"""Kullback-Leibler divergence between the outputs of two models, in nats."""

from typing import Any

import keras
import numpy as np

from kerasmem.graph.outputs import ModelOutput, OutputForm, OutputTask
from kerasmem.graph.values import to_numpy
from kerasmem.types import Tensor, Tensors

_NEAR, _LEAST = 1e-3, float(np.finfo(np.float32).tiny)

_LEAST_SHARE = 1e-8
"""Minimum probability whose gradient float16 can represent."""


def log_probabilities(outputs: Tensors) -> Any:
    """Returns float32 log-probabilities of logits or probabilities (last axis)."""
    ops = keras.ops
    outputs = ops.cast(outputs, "float32")
    if _are_probabilities(outputs):
        return ops.log(ops.maximum(outputs, _LEAST))
    return ops.log_softmax(outputs, axis=-1)


def _are_probabilities(outputs: Tensors) -> bool:
    first = to_numpy(keras.ops.reshape(outputs, (-1, outputs.shape[-1]))[:1])
    return bool((first >= 0).all() and abs(first.sum() - 1) < _NEAR)


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
    if _is_categorical(kind):
        return kl_divergence(log_probabilities(exact), log_probabilities(other))
    exact, other = ops.cast(exact, "float32"), ops.cast(other, "float32")
    if _is_binary(kind):
        if kind.form is OutputForm.LINEAR:
            exact, other = ops.sigmoid(exact), ops.sigmoid(other)
        pairs = (ops.stack([p, 1 - p], axis=-1) for p in (exact, other))
        exact, other = (ops.log(ops.maximum(p, _LEAST)) for p in pairs)
        return ops.sum(kl_divergence(exact, other), axis=-1)
    error = ops.sum(ops.square(exact - other), axis=-1)
    return error / (2 * variance)


def probe(
    exact: Tensor, kind: ModelOutput, variance: float, random: np.random.Generator
) -> np.ndarray:
    """Returns a random float32 vector per output position.

    The mean of its outer product is the Hessian of `divergence` by `other`, at `exact`.
    """
    exact = keras.ops.cast(exact, "float32")
    signs = random.choice(np.array([-1, 1], np.float32), exact.shape)
    if _is_categorical(kind):
        share = np.exp(to_numpy(log_probabilities(exact)))
        if _are_probabilities(exact):
            return signs / np.sqrt(np.maximum(share, _LEAST_SHARE))
        signs *= np.sqrt(share)
        return signs - share * signs.sum(-1, keepdims=True)
    if _is_binary(kind):
        is_logit = kind.form is OutputForm.LINEAR
        share = to_numpy(keras.ops.sigmoid(exact) if is_logit else exact)
        spread = np.sqrt(np.maximum(share * (1 - share), _LEAST_SHARE))
        return signs * spread if is_logit else signs / spread
    return signs / np.float32(np.sqrt(variance))


def _is_categorical(kind: ModelOutput) -> bool:
    return kind.form is OutputForm.SOFTMAX or kind.task is OutputTask.CATEGORICAL


def _is_binary(kind: ModelOutput) -> bool:
    return kind.form is OutputForm.SIGMOID or kind.task is OutputTask.BINARY
