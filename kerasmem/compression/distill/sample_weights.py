"""Weights of samples: which places are padding, how much each teacher counts.

Models that take their masks as inputs, as those of KerasHub do, hand none on to losses.

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
"""Masks (batch, length), true where there is a token, by what comes before
`padding_mask` in their inputs' names: "", "encoder_" or "decoder_"."""


def padding_masks(x: Tensor) -> Masks:
    """Return the masks among a model's inputs, where these have names."""
    if not isinstance(x, Mapping):
        return {}
    return {k.removesuffix(_KEY): m for k, m in x.items() if str(k).endswith(_KEY)}


def padding_weights(masks: Masks, outputs: Tensors) -> Any:
    """Return sample weights in the structure of the outputs, None if all count alike.

    They are those of Keras's masks: 0 for padding, and as much more for the rest.
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


def _weights(masks: Masks, name: str, output: Tensor) -> Any:
    # A model with two sequences answers along the decoder's.
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
    """Return how wrong a classifier is, (batch,); the mean over all but the first axis.

    Args:
        logits: (batch, ..., classes).
        labels: classes as numbers, or one-hot.
    """
    each = -ops.sum(one_hot(labels, logits) * ops.log_softmax(logits), axis=-1)
    return ops.mean(flat(ops.expand_dims(each, -1)), axis=-1)


def confidences(errors: Sequence[Any]) -> list[Any]:
    """Return the share of each teacher, (batch,); those of a sample add up to 1.

    A teacher counts the less, the larger its cross-entropy is beside the others'.

    Args:
        errors: that of each of at least two teachers, (batch,).
    """
    away = ops.softmax(ops.stack(list(errors)), axis=0)
    shares = (1.0 - away) / (len(errors) - 1)
    return [shares[place] for place in range(len(errors))]


def weighted(weight: Any, share: Any) -> Any:
    """Return sample weights, or None, times the share of a teacher."""
    if weight is None:
        return share

    def product(one: Any) -> Any:
        one = ops.convert_to_tensor(one)
        column = ops.reshape(share, (-1, *[1] * (one.ndim - 1)))
        return ops.cast(one, "float32") * column

    return keras.tree.map_structure(product, weight)
