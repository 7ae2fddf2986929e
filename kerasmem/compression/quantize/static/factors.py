"""What a normalization multiplies with and adds, per channel."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.repair.batch_norm import factors, is_sound
from kerasmem.graph.values import to_numpy


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
