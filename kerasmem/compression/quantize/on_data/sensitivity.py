"""Sensitivity of a model's outputs to the rounding of its weights.

For small changes of the weights, the divergence of the outputs is half the sum of the
squared changes, each times a curvature. The curvatures of all weights come from one
backward pass per batch, from random output gradients: the mean of their squares is the
diagonal of the Fisher information.

Sources: Dong et al., "HAWQ-V2: Hessian Aware trace-Weighted Quantization of Neural
Networks", 2020; Bekas, Kokiopoulou and Saad, "An estimator for the diagonal of a
matrix", 2007.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.quantize.on_data.passes import batch_within
from kerasmem.files.data import few_inputs, input_batches, outputs_on, sample_inputs
from kerasmem.files.data.forms import first_samples
from kerasmem.graph.divergence import divergence, probe
from kerasmem.graph.outputs import describe_outputs
from kerasmem.graph.values import to_numpy
from kerasmem.stages import stage
from kerasmem.types import Dataset, Model, Tensors

_SAMPLES, _PLACES = 128, 1024
"""Maximum number of samples and of output positions."""

_BATCHES = 8
"""Number of batches, if there are enough samples. Each has other output gradients."""

_LEAST_SHARE = 1e-6
"""Minimum variance as a fraction of the mean square."""


class Sensitivity:
    """Outputs of a float model on samples, and how they react to changed weights.

    Output positions with sample weight 0, such as padding, do not count. At most 128
    samples or 1,024 output distributions are used.

    Args:
        model: Built model.
        data: Samples in any form listed in `kerasmem.files.data`.
    """

    def __init__(self, model: Model, data: Dataset) -> None:
        first = keras.tree.flatten(outputs_on(model, few_inputs(model, data)))
        places = max(math.prod(y.shape[1:-1]) for y in first)
        count = max(1, min(_SAMPLES, _PLACES // max(places, 1)))
        weight = first_samples(data).get("sample_weight")
        x = (sample_inputs(data, count),)
        size = batch_within(model, x, count)
        self._model, self._batches = model, list(input_batches(x, count, size))
        self._exact = [keras.tree.flatten(outputs_on(model, x)) for x in self._batches]
        loss = model.loss if model.compiled else None
        kinds = describe_outputs(model, loss, first)
        variances = map(_variance, zip(*self._exact, strict=True))
        self._measures = list(zip(kinds, variances, strict=True))
        self._shares = _shares(weight, self._batches)
        size = batch_within(model, x, max(1, _length(x) // _BATCHES))
        self._small_batches = list(input_batches(x, count, size))
        self._small_shares = _shares(weight, self._small_batches)

    def divergence(self) -> float:
        """Return the mean divergence from the first outputs, in nats."""
        total = weights = 0.0
        for x, exact, share in zip(
            self._batches, self._exact, self._shares, strict=True
        ):
            outputs = keras.tree.flatten(outputs_on(self._model, x))
            for want, have, how in zip(exact, outputs, self._measures, strict=True):
                distance = to_numpy(divergence(want, have, *how)).astype(np.float64)
                own = _of_places(share, distance.shape)
                total, weights = total + (distance * own).sum(), weights + own.sum()
        return total / max(weights, 1.0)

    def curvatures(self, variables: Sequence[Any]) -> list[np.ndarray]:
        """Return the second derivative of `divergence` by each entry of variables.

        All weights of the model must have their first values.
        """
        random, weights = np.random.default_rng(0), 0.0
        sums = [np.zeros(tuple(each.shape), np.float32) for each in variables]

        def upstream(share: Any, outputs: Sequence[Any]) -> list[Any]:
            nonlocal weights
            probes = []
            for exact, how in zip(outputs, self._measures, strict=True):
                own = _of_places(share, exact.shape[:-1])
                weights += own.sum()
                signs = probe(exact, *how, random) * np.sqrt(own)[..., None]
                dtype = keras.backend.standardize_dtype(exact.dtype)
                probes.append(keras.ops.convert_to_tensor(signs, dtype))
            return probes

        batches = list(zip(self._small_batches, self._small_shares, strict=True))
        for count, (x, share) in enumerate(batches):
            run = partial(self._model, x, training=False)
            own = partial(upstream, share)
            gradients = current().gradients_of(run, variables, own)
            for number, gradient in enumerate(gradients):
                sums[number] += np.square(to_numpy(gradient).astype(np.float32))
            stage("sensitivity", count + 1, len(batches))
        return [total / max(weights, 1.0) for total in sums]


def _variance(batches: Sequence[Any]) -> float:
    arrays = [to_numpy(keras.ops.cast(y, "float32")).reshape(-1) for y in batches]
    values = np.concatenate(arrays).astype(np.float64)
    power = float(np.mean(values**2))
    # The error of a constant output is relative to its value.
    return max(float(values.var()), _LEAST_SHARE * power) or 1.0


def _shares(weight: Tensors, batches: Sequence[Any]) -> list[Any]:
    """Return the sample weights of each batch, None without sample weights."""
    leaves = [] if weight is None else keras.tree.flatten(weight)
    if len(leaves) != 1:
        return [None] * len(batches)
    sizes = list(map(_length, batches))
    ends = np.cumsum(sizes).tolist()
    pairs = zip(ends, sizes, strict=True)
    return [to_numpy(leaves[0][end - size : end]) for end, size in pairs]


def _of_places(share: Any, shape: Sequence[int]) -> np.ndarray:
    return share if np.shape(share) == tuple(shape) else np.ones(shape)


def _length(x: Tensors) -> int:
    return int(keras.tree.flatten(x)[0].shape[0])
