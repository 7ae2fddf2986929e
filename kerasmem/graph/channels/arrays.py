"""Arrays of channel labels.

The labels of a tensor are an int array that broadcasts against the tensor's shape, the
batch axis included: an axis has size 1 where labels do not change along it. A feature
map of 224 x 224 x 64 has 64 labels, not three million.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Shape = tuple[int | None, ...]
"""Lengths of axes, None for what the model leaves open."""

MOST_LABELS = 20_000_000
"""Labels of one tensor, at most, where all of its axes must be written out."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """The labels of one tensor of a graph.

    Args:
        array: int array of the tensor's rank that broadcasts against its shape; of size
            1 along every axis along which nothing changes.
        shape: the tensor's shape, with None for what the model leaves open.
    """

    array: np.ndarray
    shape: Shape


def axis_of(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Return a 1-D array as one of `rank` axes with all others of size 1."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)


def along(x: Tensor, axis: int) -> np.ndarray:
    """Return the labels along one axis, at the first place of all others, as 1-D."""
    axis %= len(x.shape)
    place = [0] * len(x.shape)
    place[axis] = slice(None)  # pyright: ignore[reportArgumentType, reportCallIssue]
    vector = x.array[tuple(place)]
    size = x.shape[axis]
    return vector if size is None else np.broadcast_to(vector, (size,))


def varying(array: np.ndarray) -> list[int]:
    """Return the axes along which labels change."""
    return [
        axis
        for axis, size in enumerate(array.shape)
        if size > 1
        and array.strides[axis] != 0
        and (array != array.take([0], axis)).any()
    ]


def narrow(array: np.ndarray) -> np.ndarray:
    """Return the array with every axis of size 1 along which nothing changes.

    Example:
        >>> narrow(np.array([[1, 2], [1, 2]])).tolist()
        [[1, 2]]
    """
    changing = varying(array)
    return array[
        tuple(slice(None) if a in changing else slice(0, 1) for a in range(array.ndim))
    ]


def written_out(x: Tensor) -> np.ndarray | None:
    """Return the labels at every place, with size 1 for axes that are left open.

    None if labels change along such an axis, or if they are too many.
    """
    if any(s is None and n > 1 for s, n in zip(x.shape, x.array.shape, strict=True)):
        return None
    shape = standing_in(x.shape)
    if np.prod(shape, dtype=float) > MOST_LABELS:
        return None
    return np.broadcast_to(x.array, shape)


def standing_in(shape: Sequence[int | None]) -> tuple[int, ...]:
    """Return a shape with 1 for every axis that is left open."""
    return tuple(1 if size is None else size for size in shape)


def of_rank(array: np.ndarray, rank: int) -> np.ndarray:
    """Return an array with axes of size 1 in front, as broadcasting adds them."""
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def fits(shape: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Return True for a shape that has the lengths which are known."""
    return len(shape) == len(expected) and all(
        want is None or have is None or have == want
        for have, want in zip(shape, expected, strict=True)
    )
