"""Keras operations that LiteRT supports in int8.

Every `unsupported_` function receives an operation and its input tensors. It returns
why int8 does not support this call, or None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.kernels import factors, is_sound
from kerasmem.compression.quantize.static.split_layers import RELU, activation_of
from kerasmem.graph.layer_table import entry_of, kind
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Operation

MOST_AXES = 5
"""Maximum number of axes of a tensor to pad in LiteRT."""


def unsupported_product(layer: Layer, tensors: Sequence[Any]) -> str | None:
    """Check a layer with a kernel."""
    if getattr(layer, "lora_enabled", False):
        return "has LoRA weights"
    if keras.backend.standardize_dtype(layer.kernel.dtype) == "int8":
        return "is quantized already"
    return None if tensors else "has no input"


def unsupported_spatial(layer: Layer, tensors: Sequence[Any]) -> str | None:
    """Check a layer for images or sequences."""
    if getattr(layer, "data_format", None) == "channels_first":
        return "uses channels_first"
    if None in tensors[0].shape[1:]:
        return "has inputs of unknown size"
    return None


def unsupported_convolution(layer: Layer, tensors: Sequence[Any]) -> str | None:
    """Check a convolution."""
    if layer.padding not in ("same", "valid", "causal"):
        return f"has padding {layer.padding!r}"
    if getattr(layer, "groups", 1) > 1:
        return "has groups"
    return unsupported_product(layer, tensors) or unsupported_spatial(layer, tensors)


def unsupported_pair(_: Any, tensors: Sequence[Any]) -> str | None:
    """Check an operation on two tensors."""
    if len(tensors) != 2:
        count = len(tensors)
        return f"has {count} input{'s' * (count != 1)}, but LiteRT supports two"
    one, two = (tensor.shape for tensor in tensors)
    return None if len(one) == len(two) else "has inputs of different ranks"


def unsupported_padding(operation: Operation, tensors: Sequence[Any]) -> str | None:
    """Check a padding, except for the padding value."""
    if len(tensors) != 1:
        return "pads with a tensor"
    rank = len(tensors[0].shape)
    if kind(operation) == "ops.Pad" and operation.mode != "constant":
        return f"pads in the mode {operation.mode!r}"
    if _pads_batch(operation):
        return "pads the batch"
    if rank > MOST_AXES:
        return f"has more than {MOST_AXES} axes"
    return unsupported_spatial(operation, tensors)


def unsupported_affine(layer: Layer, tensors: Sequence[Any]) -> str | None:
    """Check a normalization."""
    rank = len(tensors[0].shape)
    axis = getattr(layer, "axis", -1)
    if axis not in (-1, rank - 1, (-1,), (rank - 1,)):
        return "scales an axis other than the last"
    if None in tensors[0].shape[1:]:
        return "has inputs of unknown size"
    if affine_factors(layer, tensors[0].shape) is None:
        return "does not have one finite factor per entry of the last axis"
    return None


def unsupported_move(layer: Layer, tensors: Sequence[Any]) -> str | None:
    """Check a Flatten or Reshape."""
    shape = tensors[0].shape
    if getattr(layer, "data_format", None) == "channels_first" and len(shape) > 2:
        return "uses channels_first"
    # A LiteRT tensor has at most one unknown length, which is the batch size.
    if None in layer.compute_output_shape(shape)[1:]:
        return "has outputs of unknown size"
    return None


def affine_factors(
    layer: Layer, shape: Sequence[int | None]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale and shift of a normalization in inference, float64, per channel.

    None if they are not finite or not per channel. `shape` is the input shape.
    """
    if isinstance(layer, keras.layers.BatchNormalization):
        return factors(layer) if is_sound(layer) else None
    if isinstance(layer, keras.layers.Rescaling):
        pair = layer.scale, layer.offset
    elif layer.invert or layer.mean is None:
        return None
    else:
        mean, deviation = (to_numpy(x) for x in (layer.mean, layer.variance**0.5))
        deviation = np.maximum(deviation, keras.backend.epsilon())
        pair = 1 / deviation, -mean / deviation
    channels = [_per_channel(part, shape) for part in pair]
    good = [part for part in channels if part is not None and np.isfinite(part).all()]
    return (good[0], good[1]) if len(good) == 2 else None


def _per_channel(value: Any, shape: Sequence[int | None]) -> np.ndarray | None:
    channels = shape[-1] or 1
    try:
        part = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return None
    if part.ndim > len(shape) or any(length != 1 for length in part.shape[:-1]):
        return None
    if part.size not in (1, channels):
        return None
    return np.broadcast_to(part.reshape(-1), channels)


@dataclass(frozen=True)
class OpSpec:
    """Int8 support of an operation.

    Args:
        unsupported: Returns why an operation of this kind is not supported, or None.
        starts_int8: Whether inputs are rounded for this operation. Other operations
            only use inputs that are rounded already.
        keeps_scale: Whether the output has the range of the inputs.
        fuses_relu: Whether a following ReLU is fused with the operation.
        ends: Fixed range of the output, or None.
        unsupported_call: Like `unsupported`, for the arguments of a call.
    """

    unsupported: Callable[[Any, Sequence[Any]], str | None] = lambda *_: None
    starts_int8: bool = False
    keeps_scale: bool = False
    fuses_relu: bool = False
    ends: tuple[float, float] | None = None
    unsupported_call: Callable[..., str | None] = lambda *_, **__: None


def kind_of(operation: Operation) -> OpSpec | None:
    """Return the int8 support of an operation, or None."""
    form = entry_of(operation).integer or ""
    if form == "activation":
        return _ACTIVATIONS.get(activation_of(operation) or "", _RELU)
    return KINDS.get(form)


def unsupported_call_of(
    operation: Operation, tensors: Sequence[Any], call: Any
) -> str | None:
    """Return why a call is not supported in int8, or None.

    `call` contains the positional and keyword arguments.
    """
    kind, (args, kwargs) = kind_of(operation), call
    if kind is None:
        return f"{type(operation).__name__} has no int8 support"
    reason = kind.unsupported(operation, tensors)
    return reason or kind.unsupported_call(*args, **kwargs)


def is_identity(operation: Operation) -> bool:
    """Return whether an operation returns its input in inference."""
    entry = entry_of(operation)
    if entry.channels == "activation":
        return activation_of(operation) is None
    return entry.identity


def _slope(operation: Operation) -> float:
    own = getattr(operation, "negative_slope", None)
    # Keras has no constant for the default slope of its function.
    return float(-keras.activations.leaky_relu(-1.0)) if own is None else float(own)


def _unsupported_padding_value(_: Any, constant_values: Any = None) -> str | None:
    is_zero = constant_values is None or not np.any(constant_values)
    return None if is_zero else "pads with nonzero values"


def _pads_batch(operation: Operation) -> bool:
    return kind(operation) == "ops.Pad" and tuple(operation.pad_width[0]) != (0, 0)


def _product(unsupported: Any) -> OpSpec:
    return OpSpec(unsupported, starts_int8=True, fuses_relu=True)


_AFFINE = OpSpec(unsupported_affine, fuses_relu=True)
_RELU = OpSpec(lambda x, _: None if activation_of(x) in RELU else "has no int8 support")
_LEAKY = OpSpec(
    lambda operation, _: "has a negative slope" if _slope(operation) < 0 else None
)
_ACTIVATIONS = {
    "leaky_relu": _LEAKY,
    "hard_silu": OpSpec(),
    "silu": OpSpec(),
    # LiteRT fixes the ranges of these two.
    "sigmoid": OpSpec(ends=(0.0, 255 / 256)),
    "tanh": OpSpec(ends=(-1.0, 127 / 128)),
}
KINDS = {
    **dict.fromkeys(
        ("convolution_1d", "convolution_2d", "depthwise_1d", "depthwise_2d"),
        _product(unsupported_convolution),
    ),
    "dense": _product(unsupported_product),
    "affine": _AFFINE,
    "add": OpSpec(unsupported_pair, fuses_relu=True),
    "multiply": OpSpec(unsupported_pair, fuses_relu=True),
    "mean": OpSpec(unsupported_spatial),
    "max_pooling": OpSpec(unsupported_spatial, keeps_scale=True),
    "average_pooling": OpSpec(unsupported_spatial, keeps_scale=True),
    "padding": OpSpec(
        unsupported_padding,
        keeps_scale=True,
        unsupported_call=_unsupported_padding_value,
    ),
    "concatenate": OpSpec(keeps_scale=True),
    "reshape": OpSpec(unsupported_move, keeps_scale=True),
    "leaky_rectifier": _LEAKY,
    "rectifier": _RELU,
}
"""Int8 support by the column `integer` of the layer table."""


def is_relu(operation: Operation) -> bool:
    """Return whether an operation is a separate ReLU or ReLU6."""
    return kind_of(operation) is _RELU and activation_of(operation) in RELU


def is_affine(operation: Operation) -> bool:
    """Return whether an operation is a normalization with factors per channel."""
    return kind_of(operation) is _AFFINE
