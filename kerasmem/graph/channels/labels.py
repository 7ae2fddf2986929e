"""Integer labels of channels, and classes of labels that are removed together.

Every output channel of a layer has a label. Operations keep, move or unite labels. The
united labels form classes, and a class can be removed. Rules only collect pairs of
labels. All classes are computed at the end.

The labels of a tensor are an integer array that broadcasts to the shape of the tensor,
including the batch axis. An axis has size 1 where labels are constant. A feature map of
224 x 224 x 64 has 64 labels instead of three million.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.types import Variable

Shape = tuple[int | None, ...]
"""Lengths of axes, None if unknown."""

MOST_LABELS = 20_000_000
"""Maximum number of labels of a fully expanded tensor."""


@dataclass(frozen=True, eq=False)
class LabelledTensor:
    """Labels of one tensor, in an array that broadcasts to its shape.

    The array has size 1 along axes with constant labels. Unknown lengths of `shape` are
    None.
    """

    array: np.ndarray
    shape: Shape


def axis_of(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Reshapes a 1-D array to `rank` axes of size 1, except for `axis`."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)


def along(x: LabelledTensor, axis: int) -> np.ndarray:
    """Returns the labels along one axis, at index 0 of all other axes, as 1-D."""
    axis %= len(x.shape)
    place = [0] * len(x.shape)
    place[axis] = slice(None)  # pyright: ignore[reportArgumentType, reportCallIssue]
    vector = x.array[tuple(place)]
    size = x.shape[axis]
    return vector if size is None else np.broadcast_to(vector, (size,))


def varying(array: np.ndarray) -> list[int]:
    """Returns the axes along which labels vary."""
    return [
        axis
        for axis, size in enumerate(array.shape)
        if size > 1
        and array.strides[axis] != 0
        and (array != array.take([0], axis)).any()
    ]


def narrow(array: np.ndarray) -> np.ndarray:
    """Reduces every axis with constant labels to size 1.

    Example:
        >>> narrow(np.array([[1, 2], [1, 2]])).tolist()
        [[1, 2]]
    """
    changing = varying(array)
    return array[
        tuple(slice(None) if a in changing else slice(0, 1) for a in range(array.ndim))
    ]


def written_out(x: LabelledTensor) -> np.ndarray | None:
    """Returns the fully expanded labels, with size 1 for axes of unknown length.

    Returns None if labels vary along such an axis or there are too many labels.
    """
    if any(s is None and n > 1 for s, n in zip(x.shape, x.array.shape, strict=True)):
        return None
    shape = standing_in(x.shape)
    if np.prod(shape, dtype=float) > MOST_LABELS:
        return None
    return np.broadcast_to(x.array, shape)


def standing_in(shape: Sequence[int | None]) -> tuple[int, ...]:
    """Returns a shape with 1 for every unknown length."""
    return tuple(1 if size is None else size for size in shape)


def of_rank(array: np.ndarray, rank: int) -> np.ndarray:
    """Adds leading axes of size 1, as in broadcasting."""
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def fits(shape: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Returns whether a shape matches the known lengths of another shape."""
    return len(shape) == len(expected) and all(
        want is None or have is None or have == want
        for have, want in zip(shape, expected, strict=True)
    )


IN, OUT, CHANNEL = "in", "out", "channel"
"""Role of channels in a weight: inputs, outputs, or one entry per channel."""


@dataclass(frozen=True, eq=False)
class Use:
    """Labels along some axes of one weight.

    `role` is `"in"`, `"out"` or `"channel"`. `labels` broadcasts to the shape of the
    variable. `silenced` means that zeros in these entries disable a channel.
    """

    variable: Any
    role: str
    labels: np.ndarray
    silenced: bool


class Labels:
    """All labels of a model, with the constraints found by the rules."""

    def __init__(self) -> None:
        self.count = 0
        self.uses: list[Use] = []
        self.tensors: list[LabelledTensor] = []
        self._uses: dict[tuple[int, str, tuple[int, ...]], Use] = {}
        self._from_weight: dict[tuple[int, int], np.ndarray] = {}
        self.tied: list[tuple[np.ndarray, np.ndarray]] = []
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []
        self._frozen: list[tuple[np.ndarray, str]] = []
        self._notes: list[tuple[np.ndarray, str]] = []

    def fresh(self, *shape: int) -> np.ndarray:
        """Returns new labels in an array of this shape."""
        first = self.count
        self.count += int(np.prod(shape))
        return np.arange(first, self.count).reshape(shape)

    def from_weight(self, variable: Variable, *shape: int) -> np.ndarray:
        """Returns the output labels of a variable, equal in every call."""
        key = (id(variable), int(np.prod(shape)))
        if key not in self._from_weight:
            self._from_weight[key] = self.fresh(*shape)
        return self._from_weight[key].reshape(shape)

    def unite(self, first: np.ndarray, *others: np.ndarray) -> None:
        """Unites labels at the same index, after broadcasting the arrays."""
        for other in others:
            a, b = np.broadcast_arrays(first, other)
            different = a != b
            if different.any():
                self._pairs.append((a[different], b[different]))

    def tie(self, first: np.ndarray, second: np.ndarray) -> None:
        """Requires that two 1-D arrays lose the same number of labels."""
        self.tied.append((first, second))

    def join(self, array: np.ndarray, axes: Sequence[int], why: str = "") -> np.ndarray:
        """Unites labels along `axes`. Returns the labels with size 1 along these axes.

        `why` is the reason to report if this prevents the removal of the channels.
        """
        one = array
        for axis in axes:
            one = one.take([0], axis % array.ndim)
        self.unite(array, one)
        if why:
            self._notes.append((one, why))
        return one

    def only_along(self, x: LabelledTensor, axis: int) -> np.ndarray:
        """Unites labels over all other axes. Returns the labels along one axis."""
        axis %= len(x.shape)
        others = [other for other in range(len(x.shape)) if other != axis]
        self.join(x.array, others)
        return along(x, axis)

    def freeze(self, array: np.ndarray, why: str) -> np.ndarray:
        """Marks labels as not removable. Returns the labels."""
        self._frozen.append((np.unique(array), why))
        return array

    def frozen(self, rank: int, why: str) -> np.ndarray:
        """Returns new labels of a tensor without removable channels."""
        return self.freeze(self.fresh(*(1,) * rank), why)

    def weigh(
        self,
        variable: Variable,
        role: str,
        array: np.ndarray,
        *,
        silenced: bool = False,
    ) -> None:
        """Records labels along axes of a weight. Unites the labels of all its calls."""
        before = self._uses.get((id(variable), role, array.shape))
        if before is not None:
            self.unite(before.labels, array)
            return
        use = Use(variable, role, array, silenced or role == IN)
        self._uses[id(variable), role, array.shape] = use
        self.uses.append(use)

    def weigh_axis(
        self,
        variable: Variable,
        role: str,
        axis: int,
        vector: np.ndarray,
        *,
        silenced: bool = False,
    ) -> None:
        """Records labels along one axis of a weight."""
        array = axis_of(vector, axis, len(variable.shape))
        self.weigh(variable, role, array, silenced=silenced)

    def classes(self) -> np.ndarray:
        """Returns the class of every label, which is its smallest label."""
        smallest = np.arange(self.count)
        if self._pairs:
            a = np.concatenate([pair[0].ravel() for pair in self._pairs])
            b = np.concatenate([pair[1].ravel() for pair in self._pairs])
            smallest = components(self.count, a, b)
        return smallest

    def reasons(self, classes: np.ndarray) -> dict[int, str]:
        """Returns the reason of each class that cannot be removed."""
        return _by_class(self._frozen, classes)

    def notes(self, classes: np.ndarray) -> dict[int, str]:
        """Returns the reasons that unite channels, for messages."""
        return _by_class(self._notes, classes)


def _by_class(
    reasons: Sequence[tuple[np.ndarray, str]], classes: np.ndarray
) -> dict[int, str]:
    reason_of: dict[int, str] = {}
    for labels, why in reasons:
        for name in np.unique(classes[labels]).tolist():
            reason_of.setdefault(name, why)
    return reason_of


def components(count: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the smallest node connected to each of `count` nodes by edges (a, b).

    Example:
        >>> components(5, np.array([4, 2]), np.array([1, 4])).tolist()
        [0, 1, 1, 3, 1]
    """
    smallest = np.arange(count)
    while True:
        left, right = smallest[a], smallest[b]
        apart = left != right
        if not apart.any():
            return smallest
        a, b, left, right = a[apart], b[apart], left[apart], right[apart]
        np.minimum.at(smallest, np.maximum(left, right), np.minimum(left, right))
        while (further := smallest[smallest]).tobytes() != smallest.tobytes():
            smallest = further
