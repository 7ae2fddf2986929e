"""Sensitivity: how far a model's outputs go when one layer is rounded.

Each layer is changed alone, and the divergence of the outputs from those of the float
model is taken; what lies before the layer is not run again. The divergence grows with
the square of small changes, and with another power of large ones.

Source: Dong, Yao, Gholami, Mahoney and Keutzer, "HAWQ: Hessian AWare Quantization of
Neural Networks with Mixed-Precision", 2019, of the second order; here it is measured.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.quantize.on_data.passes import Pass, batch_within
from kerasmem.files.data import few_inputs, outputs_on, sample_inputs
from kerasmem.files.data.forms import first_samples
from kerasmem.graph.divergence import divergence
from kerasmem.graph.outputs import describe_outputs
from kerasmem.graph.values import to_numpy
from kerasmem.stages import stage
from kerasmem.types import Dataset, Model

_SAMPLES, _PLACES = 64, 512
"""So many samples tell of a layer, and so many places of outputs, at most."""

_BATCH_SIZE = 16

_LEAST_SHARE = 1e-6
"""Of the mean square: the least that counts for a variance."""


def sensitivities(
    model: Model,
    layers: Sequence[Any],
    changed: Callable[[int], AbstractContextManager[None]],
    data: Dataset,
) -> np.ndarray:
    """Return for each layer how far the outputs go when it alone is changed, in nats.

    It is the mean over places of outputs, those of weight 0 left out, where the data
    has weights of places, such as those of padding.

    Args:
        model: a built model; it is as before when this returns.
        layers: layers anywhere in it, each as often as it is changed; or the model.
        changed: returns a scope in which the layer of a number is changed.
        data: samples in any form that `kerasmem.files.data` lists; the first 64 count,
            or as many as give 512 distributions of outputs.
    """
    outputs = keras.tree.flatten(outputs_on(model, few_inputs(model, data)))
    places = max(math.prod(y.shape[1:-1]) for y in outputs)
    count = max(1, min(_SAMPLES, _PLACES // max(places, 1)))
    x, weight = sample_inputs(data, count), first_samples(data).get("sample_weight")
    size = batch_within(model, (x,), _BATCH_SIZE)
    run = Pass(model, (x,), size)
    loss = model.loss if model.compiled else None
    kinds = describe_outputs(model, loss, outputs)
    distances, order = np.zeros(len(layers)), list(map(run.first_of, layers))
    with current().inference():
        exact = [run.outputs(values) for values in run.batches()]
        measures = list(
            zip(kinds, map(_variance, zip(*exact, strict=True)), strict=True)
        )
        parts = [_part(weight, n * size, y) for n, y in enumerate(exact)]
        for count_done, number in enumerate(np.argsort(order, kind="stable").tolist()):
            if order[number] > run.begin:
                run.go_on(order[number])
            with changed(number):
                distances[number] = _mean(run, exact, measures, parts)
            stage("sensitivity", count_done + 1, len(layers))
    return distances


def _mean(run: Pass, exact: list[Any], measures: list[Any], parts: list[Any]) -> float:
    total = weights = 0.0
    for values, exact_outputs, part in zip(run.batches(), exact, parts, strict=True):
        for want, have, how in zip(
            exact_outputs, run.outputs(values), measures, strict=True
        ):
            distance = to_numpy(divergence(want, have, *how)).astype(np.float64)
            own = part if np.shape(part) == distance.shape else np.ones(distance.shape)
            total, weights = total + (distance * own).sum(), weights + own.sum()
    return total / max(weights, 1.0)


def _variance(batches: Sequence[Any]) -> float:
    arrays = [to_numpy(keras.ops.cast(y, "float32")).reshape(-1) for y in batches]
    values = np.concatenate(arrays).astype(np.float64)
    power = float(np.mean(values**2))
    # Of what is always the same, an error counts beside the value.
    return max(float(values.var()), _LEAST_SHARE * power) or 1.0


def _part(weight: Any, start: int, outputs: list[Any]) -> Any:
    leaves = [] if weight is None else keras.tree.flatten(weight)
    if len(leaves) != 1:
        return None
    return to_numpy(leaves[0][start : start + outputs[0].shape[0]])
