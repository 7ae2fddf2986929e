"""Sensitivity: change of a model's outputs when one layer is rounded.

The change is the divergence from the outputs of the float model. Layers before the
changed layer do not run again. The divergence grows with the square of small changes
and with another power of large ones.

Source: Dong, Yao, Gholami, Mahoney and Keutzer, "HAWQ: Hessian AWare Quantization of
Neural Networks with Mixed-Precision", 2019. The paper uses second-order information;
here the change is measured.
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
from kerasmem.types import Dataset, Model, Variable

_SAMPLES, _PLACES = 64, 512
"""Maximum number of samples and of output positions per layer."""

_BATCH_SIZE = 16

_LEAST_SHARE = 1e-6
"""Minimum variance as a fraction of the mean square."""


def sensitivities(
    model: Model,
    layers: Sequence[Any],
    changed: Callable[[int], AbstractContextManager[None]],
    data: Dataset,
) -> np.ndarray:
    """Return the mean divergence of the outputs for each changed layer, in nats.

    Output positions with sample weight 0, such as padding, do not count. The model is
    unchanged afterwards. At most 64 samples or 512 output distributions are used.

    Args:
        model: Built model.
        layers: Layers to change, with repetitions, or the model.
        changed: Returns a scope in which the layer of an index is changed.
        data: Samples in any form listed in `kerasmem.files.data`.
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
    # The error of a constant output is relative to its value.
    return max(float(values.var()), _LEAST_SHARE * power) or 1.0


def _part(weight: Variable, start: int, outputs: list[Any]) -> Any:
    leaves = [] if weight is None else keras.tree.flatten(weight)
    if len(leaves) != 1:
        return None
    return to_numpy(leaves[0][start : start + outputs[0].shape[0]])
