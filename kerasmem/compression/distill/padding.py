"""Padding of sequences, as the masks among a model's inputs tell of it.

Models that take their masks as inputs, as those of KerasHub do, hand none on to losses.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

_KEY = "padding_mask"

Masks = dict[str, Any]
"""Masks (batch, length), true where there is a token, by what comes before
`padding_mask` in their inputs' names: "", "encoder_" or "decoder_"."""


def padding_masks(x: Any) -> Masks:
    """Return the masks among a model's inputs, where these have names."""
    if not isinstance(x, Mapping):
        return {}
    return {k.removesuffix(_KEY): m for k, m in x.items() if str(k).endswith(_KEY)}


def padding_weights(masks: Masks, outputs: Any) -> Any:
    """Return sample weights in the structure of the outputs, None if all count alike.

    They are those of Keras's masks: 0 for padding, and as much more for the rest.
    """
    names = outputs if isinstance(outputs, Mapping) else {"": outputs}
    found = {
        name: keras.tree.map_structure(lambda y, n=name: _weights(masks, n, y), each)
        for name, each in names.items()
    }
    if all(weight is None for weight in keras.tree.flatten(found)):
        return None
    flat = [
        ops.ones(ops.shape(y)[:-1]) if weight is None else weight
        for y, weight in zip(
            keras.tree.flatten(outputs), keras.tree.flatten(found), strict=True
        )
    ]
    return keras.tree.pack_sequence_as(outputs, flat)


def without_padding(masks: Masks, path: str, feature: Any) -> Any:
    """Return what a layer gives, (batch, length, ...), with 0 where padding is.

    Args:
        masks: of `padding_masks`.
        path: the layer's. Of two masks it tells which is the layer's.
        feature: of any shape; what has another length than the mask stays as it is.
    """
    mask = _mask(masks, path, feature)
    if mask is None:
        return feature
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * (len(feature.shape) - 2)))
    return ops.where(mask, feature, ops.zeros_like(feature))


def _weights(masks: Masks, name: str, output: Any) -> Any:
    # A model with two sequences answers along the decoder's.
    mask = _mask(masks, name or "decoder_", output)
    if mask is None:
        return None
    mask = ops.cast(mask, "float32")
    return mask / ops.maximum(ops.mean(mask), keras.config.epsilon())


def _mask(masks: Masks, path: str, tensor: Any) -> Any:
    named = [mask for part, mask in masks.items() if part and part[:-1] in path]
    mask = named[0] if len(named) == 1 else masks.get("")
    if mask is None or len(tensor.shape) < 3 or mask.shape[1] != tensor.shape[1]:
        return None
    return ops.cast(mask, "bool")
