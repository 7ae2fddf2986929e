"""Why an operation that has a form in int8 cannot have it here.

Every `unsupported_` function takes the operation and its input tensors, and returns it,
or None. A normalization needs a factor and an offset for each channel.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.repair.kernels import factors, is_sound
from kerasmem.compression.quantize.static.pooling import MOST_AVERAGED, pads_of
from kerasmem.compression.quantize.static.product import MOST_PRODUCTS
from kerasmem.graph.layer_table import kind
from kerasmem.graph.values import to_numpy

MOST_AXES = 5
"""Of a tensor that LiteRT pads."""


def unsupported_product(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a layer with a kernel."""
    if getattr(layer, "lora_enabled", False):
        return "has LoRA weights"
    if keras.backend.standardize_dtype(layer.kernel.dtype) == "int8":
        return "is quantized already"
    return None if tensors else "has no input"


def unsupported_spatial(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a layer that takes pictures or sequences."""
    if getattr(layer, "data_format", None) == "channels_first":
        return "has channels first"
    if None in tensors[0].shape[1:]:
        return "takes tensors of an open size"
    return None


def unsupported_convolution(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a convolution."""
    if layer.padding not in ("same", "valid", "causal"):
        return f"has padding {layer.padding!r}"
    if getattr(layer, "groups", 1) > 1:
        return "has groups"
    if int(np.prod(layer.kernel_size)) > MOST_PRODUCTS:
        return f"has a window of more than {MOST_PRODUCTS} pixels"
    return unsupported_product(layer, tensors) or unsupported_spatial(layer, tensors)


def unsupported_average(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of an average pooling."""
    if int(np.prod(layer.pool_size)) > MOST_AVERAGED:
        return f"has a window of more than {MOST_AVERAGED} pixels"
    return unsupported_spatial(layer, tensors)


def unsupported_pair(_: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of an operation on two tensors."""
    if len(tensors) != 2:
        count = len(tensors)
        return f"takes {count} tensor{'s' * (count != 1)}, that of LiteRT takes two"
    one, two = (tensor.shape for tensor in tensors)
    return None if len(one) == len(two) else "takes tensors of two ranks"


def unsupported_padding(operation: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a padding, in whatever it pads with."""
    if len(tensors) != 1:
        return "pads with a tensor"
    rank = len(tensors[0].shape)
    if kind(operation) == "ops.Pad" and operation.mode != "constant":
        return f"pads in the mode {operation.mode!r}"
    if pads_of(operation, rank)[0] != (0, 0):
        return "pads the batch"
    if rank > MOST_AXES:
        return f"has more than {MOST_AXES} axes"
    return unsupported_spatial(operation, tensors)


def unsupported_affine(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a normalization."""
    rank = len(tensors[0].shape)
    axis = getattr(layer, "axis", -1)
    if axis not in (-1, rank - 1, (-1,), (rank - 1,)):
        return "scales along another axis than the last"
    if None in tensors[0].shape[1:]:
        return "takes tensors of an open size"
    if affine_factors(layer, tensors[0].shape) is None:
        return "does not multiply by finite numbers, one for each of the last axis"
    return None


def unsupported_move(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a Flatten or Reshape."""
    shape = tensors[0].shape
    if getattr(layer, "data_format", None) == "channels_first" and len(shape) > 2:
        return "has channels first"
    # A tensor in LiteRT has one open length at most, and the batch is one.
    if None in layer.compute_output_shape(shape)[1:]:
        return "gives tensors of an open size"
    return None


def affine_factors(
    layer: Any, shape: Sequence[int | None]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return factors and offsets of a layer in inference, float64, one per channel.

    None if they are not finite, or not one per channel.

    Args:
        layer: a BatchNormalization, Normalization or Rescaling.
        shape: of what it takes, its last axis that of the channels.
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
    found = [_per_channel(part, shape) for part in pair]
    good = [part for part in found if part is not None and np.isfinite(part).all()]
    return (good[0], good[1]) if len(good) == 2 else None


def _per_channel(given: Any, shape: Sequence[int | None]) -> np.ndarray | None:
    """Return what broadcasts over all axes but the last, None if it does not."""
    channels = shape[-1] or 1
    try:
        part = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return None
    if part.ndim > len(shape) or any(length != 1 for length in part.shape[:-1]):
        return None
    if part.size not in (1, channels):
        return None
    return np.broadcast_to(part.reshape(-1), channels)
