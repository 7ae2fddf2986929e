"""Second moments of what goes into a layer, summed up over samples that stream by.

A layer with a kernel is a product of matrices: inputs in rows, outputs in columns.
"""

import math
from collections import deque
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.adaptive.relaxation import Moments
from kerasmem.errors import DataError
from kerasmem.files.data import input_batches
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.observe import LayerCall, observe
from kerasmem.graph.values import to_numpy


def is_product_of_matrices(layer: Any) -> bool:
    """Return True for a layer that `columns` knows, one of Keras's own."""
    entry, is_own = entry_of(layer), not getattr(layer, "lora_enabled", False)
    is_one = entry.kernel in ("dense", "convolution", "depthwise")
    return is_one and entry.integer is not None and is_own


def columns(layer: Any, x: Any) -> np.ndarray:
    """Return what a layer multiplies with its kernel, float32 (groups, rows, K).

    Args:
        layer: one of `is_product_of_matrices`.
        x: a tensor that goes in.
    """
    ops = keras.ops
    x = ops.cast(x, "float32")
    if entry_of(layer).kernel == "dense":
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
    if entry_of(layer).kernel == "depthwise":
        return np.moveaxis(kernel.reshape(-1, *kernel.shape[-2:]), 1, 0)
    rows = kernel.reshape(-1, _groups(layer), kernel.shape[-1] // _groups(layer))
    return np.moveaxis(rows, 1, 0)


def of_matrices(layer: Any, found: np.ndarray) -> np.ndarray:
    """Return the kernel that `matrices` made `found` of."""
    return np.moveaxis(found, 0, 1).reshape(layer.kernel.shape)


def _groups(layer: Any) -> int:
    """Return how many sets of channels have nothing to do with each other."""
    if entry_of(layer).kernel == "depthwise":
        return layer.kernel.shape[-2]
    return getattr(layer, "groups", 1)


_SAMPLES, _BATCH_SIZE = 512, 16
_MOST_ROWS = 64
"""So many places of a sample are looked at, of a convolution's output."""


def moments_of(
    models: tuple[Any, Any], layers: tuple[Any, Any], data: Any
) -> Moments | None:
    """Return the moments of a layer's inputs, None if it is not called.

    Args:
        models: the float model, and a copy with rounded weights before the layer.
        layers: the layer in one and in the other.
        data: samples in any form that `kerasmem.files.data` lists; the first 512 count.

    Raises:
        DataError: if they are not finite.
    """
    rounded, mixed, rows = None, None, 0
    random = np.random.default_rng(0)
    exact: deque[Any] = deque()

    def see(call: LayerCall) -> None:
        nonlocal rounded, mixed, rows
        if call.layer is layers[0]:
            exact.append(call.x)
            return
        behind, before = _rows(layers[0], (exact.popleft(), call.x), random)
        rows += before.shape[1]
        turned = before.swapaxes(-1, -2)
        own, both = turned @ before, turned @ behind
        rounded = own.astype(np.float64) if rounded is None else rounded + own
        mixed = both.astype(np.float64) if mixed is None else mixed + both

    def run(batch: Any, *, training: bool) -> None:
        for model in models:
            model(batch, training=training)

    observe(run, input_batches(data, _SAMPLES, _BATCH_SIZE), layers, inputs=see)
    if rounded is None or mixed is None:
        return None
    if not (np.isfinite(rounded).all() and np.isfinite(mixed).all()):
        raise DataError(
            f"The layer {layers[0].name!r} is given NaN or infinity. Next: look at the "
            "data first, then at the weights of the layers before it."
        )
    return Moments(rounded, mixed, rows)


def _rows(
    layer: Any, pair: tuple[Any, Any], random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return some rows of what `columns` returns of two tensors, at the same places.

    A convolution reads each number many times: all rows of a batch may take gigabytes,
    so only those of one sample are there at once.
    """
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    arrays = [to_numpy(x).astype(np.float32) for x in pair]
    for sample in range(len(arrays[0])):
        every = [columns(layer, x[sample : sample + 1]) for x in arrays]
        count = every[0].shape[1]
        places = np.arange(count)
        if count > _MOST_ROWS:
            places = random.choice(count, _MOST_ROWS, replace=False)
        for parts, part in zip(found, every, strict=True):
            parts.append(part[:, places])
    behind, before = (np.concatenate(parts, axis=1) for parts in found)
    return behind, before
