"""Why an operation of a kind that has a form in int8 cannot have it.

Every function takes the operation and its input tensors, and returns it, or None.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static.factors import affine_factors
from kerasmem.compression.quantize.static.padding import pads_of
from kerasmem.compression.quantize.static.pooling import MOST_AVERAGED
from kerasmem.compression.quantize.static.product import MOST_PRODUCTS
from kerasmem.graph.channels.kind import kind

MOST_AXES = 5
"""Of a tensor that LiteRT pads."""


def why_no_product(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a layer with a kernel."""
    if getattr(layer, "lora_enabled", False):
        return "has LoRA weights"
    if keras.backend.standardize_dtype(layer.kernel.dtype) == "int8":
        return "is quantized already"
    return None if tensors else "has no input"


def why_no_pictures(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a layer that takes pictures or sequences."""
    if getattr(layer, "data_format", None) == "channels_first":
        return "has channels first"
    if None in tensors[0].shape[1:]:
        return "takes tensors of an open size"
    return None


def why_no_convolution(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a convolution."""
    if layer.padding not in ("same", "valid", "causal"):
        return f"has padding {layer.padding!r}"
    if getattr(layer, "groups", 1) > 1:
        return "has groups"
    if int(np.prod(layer.kernel_size)) > MOST_PRODUCTS:
        return f"has a window of more than {MOST_PRODUCTS} pixels"
    return why_no_product(layer, tensors) or why_no_pictures(layer, tensors)


def why_no_average(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of an average pooling."""
    if int(np.prod(layer.pool_size)) > MOST_AVERAGED:
        return f"has a window of more than {MOST_AVERAGED} pixels"
    return why_no_pictures(layer, tensors)


def why_no_pair(_: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of an operation on two tensors."""
    if len(tensors) != 2:
        count = len(tensors)
        return f"takes {count} tensor{'s' * (count != 1)}, that of LiteRT takes two"
    one, two = (tensor.shape for tensor in tensors)
    return None if len(one) == len(two) else "takes tensors of two ranks"


def why_no_padding(operation: Any, tensors: Sequence[Any]) -> str | None:
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
    return why_no_pictures(operation, tensors)


def why_no_affine(layer: Any, tensors: Sequence[Any]) -> str | None:
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


def why_no_move(layer: Any, tensors: Sequence[Any]) -> str | None:
    """Tell of a Flatten or Reshape."""
    shape = tensors[0].shape
    if getattr(layer, "data_format", None) == "channels_first" and len(shape) > 2:
        return "has channels first"
    # A tensor in LiteRT has one open length at most, and the batch is one.
    if None in layer.compute_output_shape(shape)[1:]:
        return "gives tensors of an open size"
    return None
