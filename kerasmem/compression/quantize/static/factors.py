"""What a normalization multiplies with and adds, per channel."""

from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.repair.batch_norm import factors, is_sound
from kerasmem.graph.values import to_numpy


def affine_factors(layer: Any, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return factors and offsets of a layer in inference, float64, one per channel.

    None if they are not finite, or not one per channel.

    Args:
        layer: a BatchNormalization, Normalization or Rescaling.
        channels: length of the last axis.
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
    try:
        found = [
            np.broadcast_to(np.asarray(x, np.float64).reshape(-1), channels)
            for x in pair
        ]
    except (TypeError, ValueError):
        return None
    return (found[0], found[1]) if np.isfinite(found).all() else None
