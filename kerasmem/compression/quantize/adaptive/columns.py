"""Layers with a kernel as products of matrices: inputs in rows, outputs in columns."""

import math
from typing import Any

import keras
import numpy as np

from kerasmem.graph.channels.kind import kind
from kerasmem.graph.values import to_numpy

_DENSE = ("layers.Dense",)
_DEPTHWISE = ("layers.DepthwiseConv1D", "layers.DepthwiseConv2D")
_CONVOLUTIONS = ("layers.Conv1D", "layers.Conv2D", *_DEPTHWISE)


def is_product_of_matrices(layer: Any) -> bool:
    """Return True for a layer that `columns` knows, one of Keras's own."""
    is_own = not getattr(layer, "lora_enabled", False)
    return kind(layer) in (*_DENSE, *_CONVOLUTIONS) and is_own


def columns(layer: Any, x: Any) -> np.ndarray:
    """Return what a layer multiplies with its kernel, float32 (groups, rows, K).

    Args:
        layer: one of `is_product_of_matrices`.
        x: a tensor that goes in.
    """
    ops = keras.ops
    x = ops.cast(x, "float32")
    if kind(layer) in _DENSE:
        return to_numpy(x).reshape(1, -1, x.shape[-1])
    if layer.data_format == "channels_first":
        x = ops.moveaxis(x, 1, -1)
    window, padding = layer.kernel_size, layer.padding
    if padding == "causal":
        before = layer.dilation_rate[0] * (window[0] - 1)
        x, padding = ops.pad(x, [(0, 0), (before, 0), (0, 0)]), "valid"
    # One filter for each place in the window, which gives what stands there.
    count, channels = math.prod(window), x.shape[-1]
    places = np.eye(count, dtype="float32").reshape(*window, 1, count)
    found = to_numpy(
        ops.depthwise_conv(
            x,
            ops.convert_to_tensor(np.repeat(places, channels, axis=-2)),
            layer.strides,
            padding,
            "channels_last",
            layer.dilation_rate,
        )
    )
    groups = _groups(layer)
    found = found.reshape(-1, groups, channels // groups, count)
    return found.transpose(1, 0, 3, 2).reshape(groups, -1, count * (channels // groups))


def matrices(layer: Any, kernel: np.ndarray) -> np.ndarray:
    """Return the kernel of a layer as matrices, (groups, K, outputs)."""
    if kind(layer) in _DEPTHWISE:
        return np.moveaxis(kernel.reshape(-1, *kernel.shape[-2:]), 1, 0)
    rows = kernel.reshape(-1, _groups(layer), kernel.shape[-1] // _groups(layer))
    return np.moveaxis(rows, 1, 0)


def of_matrices(layer: Any, found: np.ndarray) -> np.ndarray:
    """Return the kernel that `matrices` made `found` of."""
    return np.moveaxis(found, 0, 1).reshape(layer.kernel.shape)


def _groups(layer: Any) -> int:
    """Return how many sets of channels have nothing to do with each other."""
    if kind(layer) in _DEPTHWISE:
        return layer.kernel.shape[-2]
    return getattr(layer, "groups", 1)
