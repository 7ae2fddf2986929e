"""Operations that let a positive factor of a channel through as it is."""

from typing import Any

import keras

from kerasmem.graph.channels.kind import kind

_ALWAYS = frozenset(
    [
        *("layers.LeakyReLU", "layers.PReLU", "ops.Relu", "ops.LeakyRelu"),
        *("layers.Dropout", "layers.Identity", "layers.Flatten"),
        *(f"layers.SpatialDropout{n}D" for n in (1, 2, 3)),
        *("layers.GaussianNoise", "layers.GaussianDropout"),
        *(
            f"layers.{name}{n}D"
            for name in (
                *("MaxPooling", "AveragePooling", "GlobalMaxPooling"),
                *("GlobalAveragePooling", "ZeroPadding", "Cropping", "UpSampling"),
            )
            for n in (1, 2, 3)
        ),
    ]
)
_ACTIVATIONS = ("linear", "relu", "leaky_relu")


def lets_through(operation: Any, *, relu6: bool = False) -> bool:
    """Return True if `f(s * x) == s * f(x)` for a positive `s` of each channel.

    Args:
        operation: a layer without a kernel, or an operation.
        relu6: whether a bound above, as of ReLU6, is to be overlooked.
    """
    name = kind(operation)
    if name == "layers.ReLU":
        bounded = operation.max_value is not None
        return not operation.threshold and (relu6 or not bounded)
    if name == "layers.Activation":
        return passes(operation.activation, relu6=relu6)
    return name in _ALWAYS


def passes(activation: Any, *, relu6: bool = False) -> bool:
    """Return True for an activation of a layer that `lets_through` holds for."""
    if activation is None:
        return True
    if isinstance(activation, keras.layers.Layer):
        return lets_through(activation, relu6=relu6)
    names = (*_ACTIVATIONS, "relu6") if relu6 else _ACTIVATIONS
    return any(activation is getattr(keras.activations, name) for name in names)


def without_bound(operation: Any) -> dict[str, Any] | None:
    """Return what makes a ReLU of the ReLU6 in a layer's config, None without one."""
    if kind(operation) == "layers.ReLU":
        return {"max_value": None} if operation.max_value is not None else None
    activation = getattr(operation, "activation", None)
    if activation is keras.activations.relu6:
        return {"activation": "relu"}
    return None
