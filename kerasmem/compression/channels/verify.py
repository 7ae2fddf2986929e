"""Compares a smaller model with the original model.

Removed channels may only affect the weights that consumed them. Thus the smaller model
equals the original model with the entries of these weights set to zero.
"""

from collections.abc import Iterator
from typing import Any

import keras
import ml_dtypes
import numpy as np

from kerasmem.errors import ModelError
from kerasmem.files.data import few_inputs
from kerasmem.graph.channels import ChannelSubset
from kerasmem.graph.layers import own_graph, sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.types import Dataset, Model, Tensor, Tensors, Variable

TOLERANCE = 1e-4
"""Largest allowed output difference, relative to the largest output."""

_NUDGE = 1e-6
"""Minimum relative weight change in the test of numerical stability."""

_LENGTHS = (64, 32, 8)
"""Lengths to try for input axes of unknown length."""


def difference(
    original: Model, smaller: Any, subset: ChannelSubset, data: Dataset = None
) -> float:
    """Returns the output difference from the original model without these channels.

    The difference is relative to the largest output. Returns NaN if there is no data
    and the model does not run on random numbers. Raises `ModelError` if the difference
    is larger than rounding errors explain.
    """
    error, silenced_outputs, inputs = compared(original, smaller, subset, data)
    if inputs is None or error <= TOLERANCE:
        return error
    # Some models are numerically unstable in low precision: a tiny weight change has
    # the same effect on the outputs.
    nudge = max(_NUDGE, _rounding(original))
    if error <= 10 * _apart(
        silenced_outputs, _silenced(original, subset, inputs, nudge)
    ):
        return error
    raise ModelError(
        f"The outputs of the model {original.name!r} without channels differ by "
        f"{error:.1e} of the largest output from the original with the same channels "
        f"silenced. Expected at most {TOLERANCE:.0e}. This is a defect of kerasmem. "
        "Next: add the layers around to `ignore`, and report it."
    )


def compared(
    original: Model, smaller: Any, subset: ChannelSubset, data: Dataset
) -> tuple[float, list[np.ndarray], Any]:
    """Returns the difference, expected outputs, and inputs (None if no input runs)."""
    for inputs in _inputs(original, data):
        try:
            silenced_outputs = _silenced(original, subset, inputs)
            break
        except Exception:
            # A length may exceed a table of positions, or be too small for a pooling.
            if data is not None:
                raise
    else:
        return float("nan"), [], None
    outputs = keras.tree.flatten(smaller(inputs, training=False))
    return (
        _apart(silenced_outputs, [to_numpy(y) for y in outputs]),
        silenced_outputs,
        inputs,
    )


def _silenced(
    model: Model, subset: ChannelSubset, inputs: Tensors, nudge: float = 0.0
) -> list[np.ndarray]:
    random = np.random.default_rng(1)

    def value_of(variable: Variable) -> Any:
        silences = subset.silences(variable)
        if not (silences or nudge):
            return keras.ops.convert_to_tensor(variable)
        value = to_numpy(variable)
        if silences:
            value = subset.silence(variable, value)
        if nudge and keras.backend.is_float_dtype(variable.dtype):
            value = value * random.uniform(1 - nudge, 1 + nudge, value.shape)
        return keras.ops.convert_to_tensor(value, dtype=variable.dtype)

    outputs, _ = model.stateless_call(
        list(map(value_of, model.trainable_variables)),
        list(map(value_of, model.non_trainable_variables)),
        inputs,
        training=False,
    )
    return [to_numpy(y) for y in keras.tree.flatten(outputs)]


def _apart(expected: list[np.ndarray], actual: list[np.ndarray]) -> float:
    errors = [0.0]
    for pair in zip(expected, actual, strict=True):
        want, have = (each.astype("float64") for each in pair)
        if want.shape != have.shape:
            return float("inf")
        # In half precision, an epsilon can vanish: silenced channels are NaN in both.
        differs = (want != have) & ~(np.isnan(want) & np.isnan(have))
        apart = np.nan_to_num(np.abs(want[differs] - have[differs]), nan=np.inf)
        error = float(apart.max(initial=0.0))
        scale = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
        errors.append(error / scale if scale else error)
    return float(np.max(errors))


def _rounding(model: Model) -> float:
    types = {layer.compute_dtype for layer in sublayers(model)}
    floats = filter(keras.backend.is_float_dtype, types)
    return max((float(ml_dtypes.finfo(name).eps) / 2 for name in floats), default=0.0)


def _inputs(model: Model, data: Dataset) -> Iterator[Any]:
    if data is not None:
        arrays = few_inputs(model, data, 4)
        yield keras.tree.map_structure(keras.ops.convert_to_tensor, arrays)
    elif not any(x.dtype == "string" for x in model.inputs):
        structure = own_graph(model).input  # `model.input` fails for Sequential
        for length in _LENGTHS:
            random = np.random.default_rng(0)
            yield keras.tree.map_structure(
                lambda x, n=length, r=random: _random(x, n, r), structure
            )


def _random(x: Tensor, length: int, random: np.random.Generator) -> Any:
    batch, *rest = x.shape
    shape = (batch or 2, *(size or length for size in rest))
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)):
        value = random.normal(size=shape)
    else:
        value = random.integers(0, 2, shape)
    return keras.ops.convert_to_tensor(value, dtype=x.dtype)
