"""Values of variables: conversion, size, finiteness and digest."""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.lazy import array_at_rest
from kerasmem.errors import DataError, ModelError
from kerasmem.types import Layer, Model, Variable


def to_numpy(variable: Variable) -> np.ndarray:
    """Returns the value of a `keras.Variable` or tensor as a NumPy array."""
    # Via a tensor, because NumPy 2 deprecates the conversion of a Keras variable.
    return keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(variable))


def array_of(variable: Variable) -> np.ndarray:
    """Returns the value of a `keras.Variable` for reading, without a copy on a CPU.

    A value stored in a file is valid until the next call for another variable.
    """
    array = array_at_rest(variable)
    return current().read_only_array(variable.value) if array is None else array


def nbytes(variable: Variable) -> int:
    """Returns the size of a variable in bytes."""
    dtype = np.dtype(keras.backend.standardize_dtype(variable.dtype))
    return math.prod(variable.shape) * dtype.itemsize


def held_bytes(model: Model) -> int:
    """Returns the bytes of the variables of a model and of its optimizers."""
    slots = [v for optimizer in optimizers(model) for v in optimizer.variables]
    variables = [*model.variables, *slots]
    return sum(map(nbytes, {id(variable): variable for variable in variables}.values()))


def optimizers(model: Model) -> list[Any]:
    """Returns all optimizers of a model, including ones for a custom `train_step`."""
    own_optimizer = [model.optimizer] if model.compiled and model.optimizer else []
    return [*own_optimizer, *other_optimizers(model).values()]


def other_optimizers(model: Model) -> dict[str, Any]:
    """Returns the optimizers in attributes other than `model.optimizer`."""
    own = getattr(model, "optimizer", None)  # missing before `compile`
    values: dict[str, Any] = {}
    for name, value in vars(model).items():
        if isinstance(value, dict):
            values |= {f"{name}[{key!r}]": part for key, part in value.items()}
        elif isinstance(value, (list, tuple)):
            values |= {f"{name}[{key}]": part for key, part in enumerate(value)}
        else:
            values[name] = value
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, keras.optimizers.Optimizer) and value is not own
    }


def represents(variable: Variable, weight: Any | None) -> None:
    """Records that a variable contains the codes or scales of a quantized weight.

    `weight` has a shape and float values, or is None for scales and zero points.
    """
    # Bypasses `__setattr__` of Keras, so that TensorFlow does not track the value.
    object.__setattr__(variable, _REPRESENTED, weight)


def is_scale(variable: Variable) -> bool:
    """Returns whether a variable is a scale of a quantized weight.

    Scales use memory, but are not parameters of the model.
    """
    ours = _represented(variable) is None
    return ours or variable.name.endswith(("kernel_scale", "embeddings_scale"))


def parameters(variable: Variable) -> int:
    """Returns the number of parameters that a variable represents."""
    if is_scale(variable):
        return 0
    return math.prod(_represented(variable).shape)


def nonzero(variable: Variable) -> int:
    """Returns the number of nonzero parameters that a variable represents."""
    if is_scale(variable):
        return 0
    weight = _represented(variable)
    if weight is variable:
        return int(np.count_nonzero(array_of(variable)))
    shape = weight.shape
    axis = next((n for n in range(len(shape)) if weight.has_parts(n)), None)
    if axis is None:
        return int(np.count_nonzero(to_numpy(weight)))
    step = max(_PART * shape[axis] // max(math.prod(shape), 1), 1)
    parts = (
        weight.part(axis, start, min(start + step, shape[axis]), None)
        for start in range(0, shape[axis], step)
    )
    return sum(int(np.count_nonzero(to_numpy(part))) for part in parts)


def _represented(variable: Variable) -> Any:
    return vars(variable).get(_REPRESENTED, variable)


_REPRESENTED = "_kerasmem_represented"
_PART = 1 << 20
"""Maximum number of entries dequantized at a time."""


def check_finite(model: Model, before: Any) -> None:
    """Raises `ModelError` if training introduced NaN or infinity."""
    for variable in _floats(model.weights):
        values = to_numpy(variable)
        wrong = values.size - np.count_nonzero(np.isfinite(values))
        if wrong and all(
            np.isfinite(to_numpy(weight)).all() for weight in _floats(before.weights)
        ):
            raise ModelError(
                f"Training left NaN or infinity in the model {model.name!r}, in "
                f"{wrong} of {values.size} entries of {variable.path!r}. Next: check "
                "the samples and labels for such values, then the learning rate."
            )


def not_finite(layer: Layer) -> DataError:
    """Returns the error for a layer with outputs that are not finite."""
    return DataError(
        f"The layer {layer.name!r} outputs NaN or infinity on the samples. Next: check "
        "the data, then the weights of this layer."
    )


def _floats(variables: Iterable[Any]) -> Iterable[Any]:
    return (v for v in variables if keras.backend.is_float_dtype(v.dtype))


_DIGEST_BYTES = 16


def model_digest(model: Model, what: Sequence[str]) -> str:
    """Returns a digest of a model's config, attributes and weights, and of `what`."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    layers = model._flatten_layers(include_self=True, recursive=True)
    plain = [_config(model), list(map(_plain_attributes, layers)), list(what)]
    digest.update(json.dumps(plain, sort_keys=True, default=_name).encode())
    for variable in model.variables:
        if "seed_generator" in variable.path:  # changes with every random number
            continue
        value = np.ascontiguousarray(to_numpy(variable))
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _config(model: Model) -> Any:
    try:
        return json.loads(json.dumps(model.get_config(), default=_name))
    except Exception:  # noqa: BLE001 - `get_config` of custom layers may raise any.
        return type(model).__qualname__


def _plain_attributes(layer: Layer) -> dict[str, Any]:
    if type(layer).__module__.partition(".")[0] in ("keras", "keras_hub", "kerasmem"):
        return {}
    kinds = (bool, int, float, str)
    attributes = {k: v for k, v in vars(layer).items() if isinstance(v, kinds)}
    return {key: value for key, value in attributes.items() if not key.startswith("_")}


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)
