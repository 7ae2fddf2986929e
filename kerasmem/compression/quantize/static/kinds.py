"""Which of Keras's operations can be computed with codes, and by which layer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static import (
    elementwise,
    pooling,
    products,
    support,
)
from kerasmem.compression.quantize.static.base import RELU, Codes
from kerasmem.compression.quantize.static.elementwise import FUNCTIONS
from kerasmem.compression.quantize.static.pooling import pads_of
from kerasmem.compression.quantize.static.split import Gate, activation_of
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.values import to_numpy


@dataclass(frozen=True)
class OpSpec:
    """How an operation is computed with codes.

    Args:
        layer: the class of the integer layer; None for the operation's own layer.
        unsupported: returns why an operation of this kind cannot be; None if it can.
        arguments: returns those of its own that the integer layer takes, of the
            operation and the shape of its first input.
        starts_int8: whether codes are made for its sake; others take what is there.
        keeps_scale: whether the codes of its output are those of its inputs.
        fuses_relu: whether a ReLU behind it can be a part of it.
        weights: returns the kernel and the bias of the operation, for an input of a
            shape; None without.
        codes: those of its output, where it can have no others.
        unsupported_call: like `unsupported`, of the arguments of a call.
    """

    layer: type | None
    unsupported: Callable[[Any, Sequence[Any]], str | None] = lambda *_: None
    arguments: Callable[[Any, Any], dict[str, Any]] = lambda *_: {}
    starts_int8: bool = False
    keeps_scale: bool = False
    fuses_relu: bool = False
    weights: Callable[[Any, Any], tuple[np.ndarray, np.ndarray | None]] | None = None
    codes: Codes | None = None
    unsupported_call: Callable[..., str | None] = lambda *_, **__: None


def kind_of(operation: Any) -> OpSpec | None:
    """Return how an operation is computed with codes, None if it is not."""
    if isinstance(operation, Gate):
        return _GATE
    form = entry_of(operation).integer or ""
    if form == "activation":
        return _ACTIVATIONS.get(activation_of(operation) or "", _RELU)
    return KINDS.get(form)


def unsupported_call_of(
    operation: Any, tensors: Sequence[Any], call: Any
) -> str | None:
    """Return why one call cannot be computed with codes, None if it can.

    Args:
        operation: what is called.
        tensors: the `KerasTensor`s that it takes.
        call: its positional and its keyword arguments.
    """
    found, (args, kwargs) = kind_of(operation), call
    if found is None:
        return f"{type(operation).__name__} has no form in int8"
    reason = found.unsupported(operation, tensors)
    return reason or found.unsupported_call(*args, **kwargs)


def is_identity(operation: Any) -> bool:
    """Return True for what hands on its input in inference."""
    entry = entry_of(operation)
    if entry.channels == "activation":
        return activation_of(operation) is None
    return entry.identity


def _attributes(*names: str) -> Callable[[Any, Any], dict[str, Any]]:
    """Return what hands on attributes of an operation as they are."""
    return lambda operation, _: {name: getattr(operation, name) for name in names}


def _kernel(axes: int, *names: str) -> Callable[[Any, Any], dict[str, Any]]:
    """Return the arguments of a layer whose channels are the last axes of a kernel."""

    def arguments(layer: Any, _: Any) -> dict[str, Any]:
        kernel = tuple(layer.kernel.shape)
        own = {name.partition("_")[0]: getattr(layer, name) for name in names}
        return {"kernel_shape": kernel, "channels": math.prod(kernel[-axes:]), **own}

    return arguments


def _own_weights(layer: Any, _: Any) -> tuple[np.ndarray, np.ndarray | None]:
    bias = None if layer.bias is None else to_numpy(layer.bias)
    return to_numpy(layer.kernel), bias


def _affine_weights(layer: Any, shape: Any) -> tuple[np.ndarray, np.ndarray | None]:
    return support.affine_factors(layer, shape) or (np.zeros(shape[-1]), None)


def _slope(operation: Any) -> float:
    """Return what a leaky ReLU multiplies negative numbers with."""
    own = getattr(operation, "negative_slope", None)
    # Keras names the slope that its function has of itself nowhere else.
    return float(-keras.activations.leaky_relu(-1.0)) if own is None else float(own)


def _unsupported_padding_value(_: Any, constant_values: Any = None) -> str | None:
    is_zero = constant_values is None or not np.any(constant_values)
    return None if is_zero else "pads with other numbers than zeros"


def _product(layer: type, unsupported: Any, axes: int, *names: str) -> OpSpec:
    """Return the form of a layer that multiplies with a kernel and adds a bias."""
    return OpSpec(
        layer,
        unsupported,
        _kernel(axes, *names),
        starts_int8=True,
        fuses_relu=True,
        weights=_own_weights,
    )


def _convolution(layer: type, axes: int) -> OpSpec:
    names = ("strides", "padding", "dilation_rate")
    return _product(layer, support.unsupported_convolution, axes, *names)


_WINDOW = _attributes("pool_size", "strides", "padding")
_GATE = OpSpec(elementwise.IntegerMultiply, support.unsupported_pair)
_AFFINE = OpSpec(
    products.IntegerAffine,
    support.unsupported_affine,
    lambda _, shape: {"kernel_shape": (shape[-1],), "channels": shape[-1]},
    fuses_relu=True,
    weights=_affine_weights,
)
_RELU = OpSpec(
    elementwise.IntegerReLU,
    lambda x, _: None if activation_of(x) in RELU else "has no form in int8",
)
_LEAKY = OpSpec(
    elementwise.IntegerLeakyReLU,
    lambda operation, _: "has a negative slope" if _slope(operation) < 0 else None,
    lambda operation, _: {"slope": _slope(operation)},
)
_ACTIVATIONS = {
    "leaky_relu": _LEAKY,
    "hard_silu": OpSpec(elementwise.IntegerHardSilu),
    **{
        name: OpSpec(
            elementwise.IntegerTable,
            arguments=lambda _, __, name=name: {"function": name},
            codes=codes,
        )
        for name, (_, codes) in FUNCTIONS.items()
    },
}
KINDS = {
    "convolution_1d": _convolution(products.IntegerConv1D, 1),
    "convolution_2d": _convolution(products.IntegerConv2D, 1),
    "depthwise_1d": _convolution(products.IntegerDepthwiseConv1D, 2),
    "depthwise_2d": _convolution(products.IntegerDepthwiseConv2D, 2),
    "dense": _product(products.IntegerDense, support.unsupported_product, 1),
    "affine": _AFFINE,
    "add": OpSpec(elementwise.IntegerAdd, support.unsupported_pair, fuses_relu=True),
    "multiply": OpSpec(
        elementwise.IntegerMultiply,
        support.unsupported_pair,
        lambda x, _: {"hides": isinstance(x, keras.layers.Multiply)},
        fuses_relu=True,
    ),
    "mean": OpSpec(
        pooling.IntegerMean, support.unsupported_spatial, _attributes("keepdims")
    ),
    "max_pooling": OpSpec(
        pooling.IntegerMaxPooling,
        support.unsupported_spatial,
        _WINDOW,
        keeps_scale=True,
    ),
    "average_pooling": OpSpec(
        pooling.IntegerAveragePooling,
        support.unsupported_average,
        _WINDOW,
        keeps_scale=True,
    ),
    "padding": OpSpec(
        pooling.IntegerPadding,
        support.unsupported_padding,
        lambda operation, shape: {"pads": pads_of(operation, len(shape))},
        keeps_scale=True,
        unsupported_call=_unsupported_padding_value,
    ),
    "concatenate": OpSpec(None, keeps_scale=True),
    "reshape": OpSpec(None, support.unsupported_move, keeps_scale=True),
    "leaky_rectifier": _LEAKY,
    "rectifier": _RELU,
}
"""By the word in the column `integer` of the layer table."""


def is_relu(operation: Any) -> bool:
    """Return True for a ReLU or ReLU6 that is a layer or operation of its own."""
    return kind_of(operation) is _RELU and activation_of(operation) in RELU


def is_affine(operation: Any) -> bool:
    """Return True for a normalization, which multiplies each channel and adds to it."""
    return kind_of(operation) is _AFFINE
