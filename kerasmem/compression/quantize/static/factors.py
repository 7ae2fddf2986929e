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
    if any(part is None or not np.isfinite(part).all() for part in found):
        return None
    return found[0], found[1]


def _per_channel(given: Any, shape: Sequence[int | None]) -> np.ndarray | None:
    """Return what broadcasts over all axes but the last, None if it does not."""
    try:
        part = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return None
    if part.ndim > len(shape) or any(length != 1 for length in part.shape[:-1]):
        return None
    if part.size not in (1, shape[-1]):
        return None
    return np.broadcast_to(part.reshape(-1), shape[-1])
