"""Sample weights from padding masks and from the confidence in teachers.

Models with masks as inputs, such as KerasHub models, do not pass masks to losses.

Source: Hailin Zhang, Defang Chen, Can Wang: Confidence-Aware Multi-Teacher Knowledge
Distillation, 2022.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.losses.base import flat, one_hot
from kerasmem.types import Tensor, Tensors

_KEY = "padding_mask"

Masks = dict[str, Any]
"""Boolean masks of shape (batch, length) by prefix of the input name: "", "encoder_" or
"decoder_"."""


def padding_masks(x: Tensor) -> Masks:
    """Returns the padding masks of named inputs by prefix."""
    if not isinstance(x, Mapping):
        return {}
    return {k.removesuffix(_KEY): m for k, m in x.items() if str(k).endswith(_KEY)}


def padding_weights(masks: Masks, outputs: Tensors) -> Any:
    """Returns sample weights in the structure of the outputs, `None` without masks.

    Like Keras masks, padding has weight 0 and the other weights are scaled up.
    """
    names = outputs if isinstance(outputs, Mapping) else {"": outputs}
    by_output = {
        name: keras.tree.map_structure(lambda y, n=name: _weights(masks, n, y), each)
        for name, each in names.items()
    }
    if all(weight is None for weight in keras.tree.flatten(by_output)):
        return None
    flat = [
        ops.ones(ops.shape(y)[:-1]) if weight is None else weight
        for y, weight in zip(
            keras.tree.flatten(outputs), keras.tree.flatten(by_output), strict=True
        )
    ]
    return keras.tree.pack_sequence_as(outputs, flat)


def without_padding(masks: Masks, path: str, feature: Any) -> Any:
    """Returns a feature of shape (batch, length, ...) with zeros at padding.

    The layer path selects between encoder and decoder masks. A feature of another
    length is returned unchanged.
    """
    mask = _mask(masks, path, feature)
    if mask is None:
        return feature
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * (len(feature.shape) - 2)))
    return ops.where(mask, feature, ops.zeros_like(feature))


def _weights(masks: Masks, name: str, output: Tensor) -> Any:
    # The outputs of an encoder-decoder model follow the decoder sequence.
    mask = _mask(masks, name or "decoder_", output)
    if mask is None:
        return None
    mask = ops.cast(mask, "float32")
    return mask / ops.maximum(ops.mean(mask), keras.config.epsilon())


def _mask(masks: Masks, path: str, tensor: Tensor) -> Any:
    own_masks = [mask for part, mask in masks.items() if part and part[:-1] in path]
    mask = own_masks[0] if len(own_masks) == 1 else masks.get("")
    if mask is None or len(tensor.shape) < 3 or mask.shape[1] != tensor.shape[1]:
        return None
    return ops.cast(mask, "bool")


BY_CONFIDENCE = "confidence"


def cross_entropy(logits: Tensor, labels: Tensor) -> Any:
    """Returns the cross-entropy per sample, for integer or one-hot labels."""
    each = -ops.sum(one_hot(labels, logits) * ops.log_softmax(logits), axis=-1)
    return ops.mean(flat(ops.expand_dims(each, -1)), axis=-1)


def confidences(errors: Sequence[Any]) -> list[Any]:
    """Returns the weight of each teacher per sample, shape (batch,), with sum 1.

    `errors` contains the cross-entropy of at least two teachers. A teacher with a
    higher cross-entropy than the others has a lower weight.
    """
    away = ops.softmax(ops.stack(list(errors)), axis=0)
    shares = (1.0 - away) / (len(errors) - 1)
    return [shares[place] for place in range(len(errors))]


def weighted(weight: Any, share: Any) -> Any:
    """Returns sample weights multiplied by the weight of a teacher."""
    if weight is None:
        return share

    def product(one: Any) -> Any:
        one = ops.convert_to_tensor(one)
        column = ops.reshape(share, (-1, *[1] * (one.ndim - 1)))
        return ops.cast(one, "float32") * column

    return keras.tree.map_structure(product, weight)
