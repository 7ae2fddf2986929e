"""Splitting of batches."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import keras
import numpy as np

from kerasmem.errors import DataError
from kerasmem.types import Tensor, Tensors


def rows(array: Tensor, begin: int, end: int) -> Any:
    """Return a range of the samples of an array."""
    return array[begin:end]


def cut(
    batch: Tensors, begin: int, end: int, take: Callable[[Any, int, int], Any] = rows
) -> Any:
    """Return a range of the samples of a batch."""
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else take(leaf, begin, end), batch
    )


def split(
    batch: Tensors, parts: int, take: Callable[[Any, int, int], Any] = rows
) -> list[Any]:
    """Split a batch into parts whose lengths differ by at most one.

    Samples are on the first axis. Raises `DataError` if the lengths of the arrays
    differ.

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
    sample weights by the output mask in place. A second use of the batch would have
    wrong weights.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    if weight is None:
        return batch
    weight = keras.tree.map_structure(
        lambda leaf: None if leaf is None else keras.ops.copy(leaf), weight
    )
    # A custom `train_step` may use the field names of a named tuple.
    return getattr(type(batch), "_make", tuple)((x, y, weight))


def length_of(batch: Tensors) -> int:
    """Return the number of samples, or raise `DataError` if lengths differ."""
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    lengths = {int(leaf.shape[0]) if len(leaf.shape) else 0 for leaf in leaves}
    if len(lengths) != 1 or 0 in lengths:
        raise DataError(
            "Cannot split a batch whose arrays differ in length along the first axis. "
            f"Expected: one length. Received: lengths {sorted(lengths)}. Next: make "
            "batches with the samples first, or fit with keras.Model.fit."
        )
    return lengths.pop()


def splittable_length(batch: Tensors) -> int:
    """Return the number of samples in a batch, 1 if the batch cannot be split."""
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
    """Return the weight of each part of a batch, and a factor per loss.

    A gradient is multiplied by the weight, which is the fraction of the samples. The
    factor of a loss corrects the weight for losses with another divisor. `valid`
    contains the divisors per part, NaN for a loss without one.

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
