"""Values of variables: on the host, in bytes, whether they are finite, as a digest."""

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
    """Return the value of a `keras.Variable` or tensor as a NumPy array."""
    # By way of a tensor: NumPy 2 deprecates how Keras hands it a variable.
    return keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(variable))


def array_of(variable: Variable) -> np.ndarray:
    """Return the value of a `keras.Variable` to read, without a copy on a CPU.

    If it is in a file, it may be read until this is called for another variable.
    """
    array = array_at_rest(variable)
    return current().read_only_array(variable.value) if array is None else array


def nbytes(variable: Variable) -> int:
    """Return the bytes of a variable in RAM."""
    dtype = np.dtype(keras.backend.standardize_dtype(variable.dtype))
    return math.prod(variable.shape) * dtype.itemsize


def held_bytes(model: Model) -> int:
    """Return the bytes of the variables of a model and of its optimizers, if any."""
    slots = [v for optimizer in optimizers(model) for v in optimizer.variables]
    variables = [*model.variables, *slots]
    return sum(map(nbytes, {id(variable): variable for variable in variables}.values()))


def optimizers(model: Model) -> list[Any]:
    """Return the optimizer of a compiled model, and those of a custom `train_step`."""
    own_optimizer = [model.optimizer] if model.compiled and model.optimizer else []
    return [*own_optimizer, *other_optimizers(model).values()]


def other_optimizers(model: Model) -> dict[str, Any]:
    """Return the optimizers in attributes of a model besides `model.optimizer`."""
    own = getattr(model, "optimizer", None)  # missing if it was never compiled
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
    """Note that a variable holds a weight in fewer bits, or is a mere scale of one.

    Args:
        variable: holds the codes or the scales.
        weight: what the codes stand for, with a shape and float values; None for scales
            and zero points.
    """
    # Past Keras's own `__setattr__`: TensorFlow would track and save what is set there.
    object.__setattr__(variable, _REPRESENTED, weight)


def is_scale(variable: Variable) -> bool:
    """Return True for the scales of quantized weights, ours and Keras's own.

    They take bytes, but are no parameters of the model.
    """
    ours = _represented(variable) is None
    return ours or variable.name.endswith(("kernel_scale", "embeddings_scale"))


def parameters(variable: Variable) -> int:
    """Return the number of a model's parameters that a variable holds."""
    if is_scale(variable):
        return 0
    return math.prod(_represented(variable).shape)


def nonzero(variable: Variable) -> int:
    """Return how many of the parameters that a variable holds are not zero."""
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
"""Entries of codes that are float at a time."""


def check_finite(model: Model, before: Any) -> None:
    """Raise if training left NaN or infinity in a model that had none.

    Args:
        model: the one that was trained.
        before: the one that it was made of.

    Raises:
        ModelError: if so; it names the first such weight.
    """
    for variable in _floats(model.weights):
        values = to_numpy(variable)
        wrong = values.size - np.count_nonzero(np.isfinite(values))
        if wrong and all(
            np.isfinite(to_numpy(weight)).all() for weight in _floats(before.weights)
        ):
            raise ModelError(
                f"Training left NaN or infinity in the model {model.name!r}, in "
                f"{wrong} of {values.size} entries of {variable.path!r}. Next: look "
                "for them in the samples and labels first, then at the learning rate."
            )


def not_finite(layer: Layer) -> DataError:
    """Return the error of a layer that makes something which is not finite."""
    return DataError(
        f"The layer {layer.name!r} makes NaN or infinity of the samples. Next: look at "
        "the data first, then at the weights of that layer."
    )


def _floats(variables: Iterable[Any]) -> Iterable[Any]:
    return (v for v in variables if keras.backend.is_float_dtype(v.dtype))


_DIGEST_BYTES = 16


def model_digest(model: Model, what: Sequence[str]) -> str:
    """Return a digest of a model's config, attributes and weights.

    Args:
        model: a built model.
        what: plain data that is to be told apart too, such as names of layers.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    layers = model._flatten_layers(include_self=True, recursive=True)
    plain = [_config(model), list(map(_plain_attributes, layers)), list(what)]
    digest.update(json.dumps(plain, sort_keys=True, default=_name).encode())
    for variable in model.variables:
        if "seed_generator" in variable.path:  # it moves on with every draw
            continue
        value = np.ascontiguousarray(to_numpy(variable))
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _config(model: Model) -> Any:
    try:
        return json.loads(json.dumps(model.get_config(), default=_name))
    except Exception:  # noqa: BLE001 - `get_config` of the user's layers may raise any.
        return type(model).__qualname__


def _plain_attributes(layer: Layer) -> dict[str, Any]:
    if type(layer).__module__.partition(".")[0] in ("keras", "keras_hub", "kerasmem"):
        return {}
    kinds = (bool, int, float, str)
    attributes = {k: v for k, v in vars(layer).items() if isinstance(v, kinds)}
    return {key: value for key, value in attributes.items() if not key.startswith("_")}


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)
