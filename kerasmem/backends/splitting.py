"""Cutting a batch into smaller ones."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import keras
import numpy as np

from kerasmem.errors import DataError
from kerasmem.types import Tensors


def rows(array: Any, begin: int, end: int) -> Any:
    """Return the samples from one number to another of an array."""
    return array[begin:end]


def cut(
    batch: Tensors, begin: int, end: int, take: Callable[[Any, int, int], Any] = rows
) -> Any:
    """Return the samples from one number to another of a batch."""
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else take(leaf, begin, end), batch
    )


def split(
    batch: Tensors, parts: int, take: Callable[[Any, int, int], Any] = rows
) -> list[Any]:
    """Return a batch in so many parts, whose lengths differ by one at most.

    Args:
        batch: arrays in any structure, each with the samples along its first axis.
        parts: number of parts, from 1 to that of the samples.
        take: takes the samples from one number to another out of an array.

    Raises:
        DataError: if the arrays are of different lengths.

    Example:
        >>> [len(part[0]) for part in split((np.zeros((32, 2)), None), 7)]
        [5, 5, 5, 5, 4, 4, 4]
    """
    short, longer = divmod(length_of(batch), parts)
    borders = [short * place + min(place, longer) for place in range(parts + 1)]
    return [cut(batch, begin, end, take) for begin, end in pairwise(borders)]


def copy_weights(batch: Tensors) -> Any:
    """Return a batch with a copy of its sample weights.

    On torch, Keras (3.15, `apply_mask` in `keras/src/losses/loss.py`) multiplies the
    sample weights with the mask of the outputs in place, so that a second use of the
    batch would be weighted wrongly.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    if weight is None:
        return batch
    weight = keras.tree.map_structure(
        lambda leaf: None if leaf is None else keras.ops.copy(leaf), weight
    )
    # A `train_step` of the user may read a named tuple by its names.
    return getattr(type(batch), "_make", tuple)((x, y, weight))


def length_of(batch: Tensors) -> int:
    """Return the number of samples in a batch.

    Raises:
        DataError: if the arrays are of different lengths.
    """
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    lengths = {int(leaf.shape[0]) if len(leaf.shape) else 0 for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise DataError(
            "A batch is split along the first axis of its arrays. Expected: one length "
            f"for all of them. Received: lengths {sorted(lengths)}. Next: make batches "
            "with the samples first, or fit with keras.Model.fit."
        )
    return lengths.pop()


def splittable_length(batch: Tensors) -> int:
    """Return the number of samples in a batch, 1 if it cannot be split."""
    try:
        return length_of(batch)
    except DataError:
        return 1


def axes_of(batch: Tensors) -> tuple[int, ...]:
    """Return the lengths of all axes of all arrays in a batch."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    return tuple(size or 0 for leaf in leaves for size in leaf.shape)


def weights(
    lengths: Sequence[int], valid: Sequence[np.ndarray] | None
) -> list[tuple[np.float32, np.ndarray]]:
    """Return what each part of a batch counts: its share, and a factor per loss.

    A gradient is multiplied with the share. A loss of a part is multiplied with its
    factor first, so that the shares, which are those of the samples, are right for
    losses that are no mean over the samples; they say what they are a mean of.

    Args:
        lengths: samples in each part.
        valid: of each part, what each loss divides its sum by, NaN for one that does
            not; None if that is the number of samples, times the same for all parts.

    Example:
        >>> weights([3, 1], None)[0]
        (np.float32(0.75), array([], dtype=float32))
        >>> weights([2, 2], [np.array([6.0]), np.array([2.0])])[1]
        (np.float32(0.5), array([0.5], dtype=float32))
    """
    shares = [np.float32(length / sum(lengths)) for length in lengths]
    if valid is None:
        return [(share, np.zeros(0, "float32")) for share in shares]
    sums = np.sum(valid, axis=0)
    return [
        (share, _factors(own, sums, share))
        for share, own in zip(shares, valid, strict=True)
    ]


def _factors(own: np.ndarray, sums: np.ndarray, share: np.float32) -> np.ndarray:
    parts = np.where(np.isnan(own), 1.0, own / np.maximum(sums, 1.0e-30))
    return (parts / share).astype("float32")
