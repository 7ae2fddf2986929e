"""Which of Keras's operations can be computed with codes, and by which layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static import layers as ours
from kerasmem.compression.quantize.static.base import RELU
from kerasmem.compression.quantize.static.codes import Codes
from kerasmem.compression.quantize.static.factors import affine_factors
from kerasmem.compression.quantize.static.hindrances import (
    why_no_affine,
    why_no_average,
    why_no_convolution,
    why_no_move,
    why_no_padding,
    why_no_pair,
    why_no_pictures,
    why_no_product,
)
from kerasmem.compression.quantize.static.padding import pads_of
from kerasmem.compression.quantize.static.split import Gate, activation_of
from kerasmem.compression.quantize.static.table import FUNCTIONS
from kerasmem.graph.channels.kind import kind
from kerasmem.graph.values import to_numpy


@dataclass(frozen=True)
class Kind:
    """How an operation is computed with codes.

    Args:
        made: returns the layer, of the operation, the shape of its first input, and
            the arguments that all integer layers have; None for the layer itself.
        why_not: returns why an operation of this kind cannot be; None if it can.
        gains: whether codes are made for its sake; others take those that are there.
        keeps: whether the codes of its output are those of its inputs.
        takes_relu: whether a ReLU behind it can be a part of it.
        weights: returns the kernel and the bias of the operation, for an input of a
            shape; None without.
        codes: those of its output, where it can have no others.
        why_no_call: like `why_not`, of the arguments of a call.
    """

    made: Callable[[Any, Any, dict[str, Any]], Any] | None
    why_not: Callable[[Any, Sequence[Any]], str | None] = lambda *_: None
    gains: bool = False
    keeps: bool = False
    takes_relu: bool = False
    weights: Callable[[Any, Any], tuple[np.ndarray, np.ndarray | None]] | None = None
    codes: Codes | None = None
    why_no_call: Callable[..., str | None] = lambda *_, **__: None


def kind_of(operation: Any) -> Kind | None:
    """Return how an operation is computed with codes, None if it is not."""
    if isinstance(operation, Gate):
        return _GATE
    name = kind(operation) or ""
    if name in ACTIVATIONS:
        return _ACTIVATIONS.get(activation_of(operation) or "", KINDS.get(name))
    return KINDS.get(name)


def why_not_coded(operation: Any, tensors: Sequence[Any], call: Any) -> str | None:
    """Return why one call cannot be computed with codes, None if it can.

    Args:
        operation: what is called.
        tensors: the `KerasTensor`s that it takes.
        call: its positional and its keyword arguments.
    """
    found, (args, kwargs) = kind_of(operation), call
    if found is None:
        return f"{type(operation).__name__} has no form in int8"
    return found.why_not(operation, tensors) or found.why_no_call(*args, **kwargs)


def is_identity(operation: Any) -> bool:
    """Return True for what hands on its input in inference."""
    if kind(operation) == "layers.Activation":
        return activation_of(operation) is None
    return kind(operation) in _IDENTITIES


_IDENTITIES = {
    "layers.ActivityRegularization",
    "layers.AlphaDropout",
    "layers.Dropout",
    "layers.GaussianDropout",
    "layers.GaussianNoise",
    "layers.Identity",
    "layers.SpatialDropout1D",
    "layers.SpatialDropout2D",
    "layers.SpatialDropout3D",
}


def _convolution(made: type, axes: int) -> Callable[[Any, Any, dict[str, Any]], Any]:
    def make(layer: Any, shape: Any, common: dict[str, Any]) -> Any:
        del shape
        kernel = tuple(layer.kernel.shape)
        return made(
            kernel_shape=kernel,
            channels=int(np.prod(kernel[-axes:])),
            strides=layer.strides,
            padding=layer.padding,
            dilation=layer.dilation_rate,
            **common,
        )

    return make


def _dense(layer: Any, shape: Any, common: dict[str, Any]) -> Any:
    del shape
    kernel = tuple(layer.kernel.shape)
    return ours.IntegerDense(kernel_shape=kernel, channels=kernel[-1], **common)


def _affine(layer: Any, shape: Any, common: dict[str, Any]) -> Any:
    del layer
    every = shape[-1]
    return ours.IntegerAffine(kernel_shape=(every,), channels=every, **common)


def _own_weights(layer: Any, shape: Any) -> tuple[np.ndarray, np.ndarray | None]:
    del shape
    bias = None if layer.bias is None else to_numpy(layer.bias)
    return to_numpy(layer.kernel), bias


def _affine_weights(layer: Any, shape: Any) -> tuple[np.ndarray, np.ndarray | None]:
    return affine_factors(layer, shape) or (np.zeros(shape[-1]), None)


def _pool(made: type) -> Callable[[Any, Any, dict[str, Any]], Any]:
    def make(layer: Any, shape: Any, common: dict[str, Any]) -> Any:
        del shape
        window = {name: getattr(layer, name) for name in _WINDOW}
        return made(**window, **common)

    return make


_WINDOW = ("pool_size", "strides", "padding")


def _slope(operation: Any) -> float:
    """Return what a leaky ReLU multiplies negative numbers with."""
    own = getattr(operation, "negative_slope", None)
    # Keras names the slope that its function has of itself nowhere else.
    return float(-keras.activations.leaky_relu(-1.0)) if own is None else float(own)


def _plain(made: type, *names: str) -> Callable[[Any, Any, dict[str, Any]], Any]:
    def make(layer: Any, shape: Any, common: dict[str, Any]) -> Any:
        del shape
        return made(**{name: getattr(layer, name) for name in names}, **common)

    return make


def _pad(operation: Any, shape: Any, common: dict[str, Any]) -> Any:
    return ours.IntegerPadding(pads=pads_of(operation, len(shape)), **common)


def _why_no_zeros(_: Any, constant_values: Any = None) -> str | None:
    is_zero = constant_values is None or not np.any(constant_values)
    return None if is_zero else "pads with other numbers than zeros"


def _multiply(operation: Any, _: Any, common: dict[str, Any]) -> Any:
    hides = isinstance(operation, keras.layers.Multiply)
    return ours.IntegerMultiply(hides=hides, **common)


_ADD = Kind(_plain(ours.IntegerAdd), why_no_pair, takes_relu=True)
_MULTIPLY = Kind(_multiply, why_no_pair, takes_relu=True)
_GATE = Kind(_plain(ours.IntegerMultiply), why_no_pair)
_AFFINE = Kind(_affine, why_no_affine, takes_relu=True, weights=_affine_weights)


def _product(
    made: Callable[[Any, Any, dict[str, Any]], Any],
    why_not: Callable[[Any, Any], str | None] = why_no_convolution,
) -> Kind:
    """Return the kind of a layer that multiplies with a kernel and adds a bias."""
    return Kind(made, why_not, gains=True, takes_relu=True, weights=_own_weights)


_RELU = Kind(
    _plain(ours.IntegerReLU),
    lambda operation, _: (
        None if activation_of(operation) in RELU else "has no form in int8"
    ),
)
_MAXIMUM = Kind(_pool(ours.IntegerMaxPooling), why_no_pictures, keeps=True)
_AVERAGE = Kind(_pool(ours.IntegerAveragePooling), why_no_average, keeps=True)
_PADDING = Kind(_pad, why_no_padding, keeps=True, why_no_call=_why_no_zeros)
_MOVES = Kind(None, keeps=True)
_MOVES_ENTRIES = Kind(None, why_no_move, keeps=True)
_LEAKY = Kind(
    lambda operation, _, common: ours.IntegerLeakyReLU(
        slope=_slope(operation), **common
    ),
    lambda operation, _: "has a negative slope" if _slope(operation) < 0 else None,
)
_HARD_SILU = Kind(_plain(ours.IntegerHardSilu))
_ACTIVATIONS = {"leaky_relu": _LEAKY, "hard_silu": _HARD_SILU} | {
    name: Kind(
        lambda _, __, common, name=name: ours.IntegerTable(function=name, **common),
        codes=codes,
    )
    for name, (_, codes) in FUNCTIONS.items()
}
ACTIVATIONS = (
    "layers.Activation",
    "ops.HardSilu",
    "ops.LeakyRelu",
    "ops.Sigmoid",
    "ops.Tanh",
)
"""Operations that are nothing but an activation."""

KINDS = {
    "layers.Conv1D": _product(_convolution(ours.IntegerConv1D, 1)),
    "layers.Conv2D": _product(_convolution(ours.IntegerConv2D, 1)),
    "layers.DepthwiseConv1D": _product(_convolution(ours.IntegerDepthwiseConv1D, 2)),
    "layers.DepthwiseConv2D": _product(_convolution(ours.IntegerDepthwiseConv2D, 2)),
    "layers.Dense": _product(_dense, why_no_product),
    "layers.BatchNormalization": _AFFINE,
    "layers.Normalization": _AFFINE,
    "layers.Rescaling": _AFFINE,
    "layers.Add": _ADD,
    "ops.Add": _ADD,
    "layers.Multiply": _MULTIPLY,
    "ops.Multiply": _MULTIPLY,
    "layers.GlobalAveragePooling2D": Kind(
        _plain(ours.IntegerMean, "keepdims"), why_no_pictures
    ),
    "layers.MaxPooling1D": _MAXIMUM,
    "layers.MaxPooling2D": _MAXIMUM,
    "layers.AveragePooling1D": _AVERAGE,
    "layers.AveragePooling2D": _AVERAGE,
    "layers.ZeroPadding1D": _PADDING,
    "layers.ZeroPadding2D": _PADDING,
    "ops.Pad": _PADDING,
    "layers.Concatenate": _MOVES,
    "layers.Flatten": _MOVES_ENTRIES,
    "layers.Reshape": _MOVES_ENTRIES,
    "layers.LeakyReLU": _LEAKY,
    "layers.ReLU": _RELU,
    "layers.Activation": _RELU,
    "ops.Relu": _RELU,
    "ops.Relu6": _RELU,
}
"""By what `kind` says of an operation."""


def is_relu(operation: Any) -> bool:
    """Return True for a ReLU or ReLU6 that is a layer or operation of its own."""
    return kind_of(operation) is _RELU and activation_of(operation) in RELU


def is_affine(operation: Any) -> bool:
    """Return True for a normalization, which multiplies each channel and adds to it."""
    return kind_of(operation) is _AFFINE
