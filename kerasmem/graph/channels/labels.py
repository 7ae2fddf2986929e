"""Integer labels of channels, and which of them must live or die together.

Every channel that a layer makes gets a label of its own. Operations pass labels on,
move them, or unite them; at the end the labels fall into classes, and a class is what
can be removed. Rules only collect pairs of labels: the classes are found once, for all
of them together.

The labels of a tensor are an int array that broadcasts against the tensor's shape, the
batch axis included: an axis has size 1 where labels do not change along it. A feature
map of 224 x 224 x 64 has 64 labels, not three million.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.types import Variable

Shape = tuple[int | None, ...]
"""Lengths of axes, None for what the model leaves open."""

MOST_LABELS = 20_000_000
"""Labels of one tensor, at most, where all of its axes must be written out."""


@dataclass(frozen=True, eq=False)
class LabelledTensor:
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


def along(x: LabelledTensor, axis: int) -> np.ndarray:
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


def written_out(x: LabelledTensor) -> np.ndarray | None:
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


IN, OUT, CHANNEL = "in", "out", "channel"
"""How a weight has channels: it consumes them, makes them, or has one entry each."""


@dataclass(frozen=True, eq=False)
class Use:
    """The labels along some axes of one weight.

    Args:
        variable: the `keras.Variable`.
        role: `"in"`, `"out"` or `"channel"`.
        labels: int array that broadcasts against the variable's shape.
        silenced: True if a channel is without effect once these entries are zero.
    """

    variable: Any
    role: str
    labels: np.ndarray
    silenced: bool


class Labels:
    """All labels of a model, with what the rules found out about them."""

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
        """Return new labels in an array of this shape."""
        first = self.count
        self.count += int(np.prod(shape))
        return np.arange(first, self.count).reshape(shape)

    def from_weight(self, variable: Variable, *shape: int) -> np.ndarray:
        """Return the labels that a variable makes: the same in every call."""
        key = (id(variable), int(np.prod(shape)))
        if key not in self._from_weight:
            self._from_weight[key] = self.fresh(*shape)
        return self._from_weight[key].reshape(shape)

    def unite(self, first: np.ndarray, *others: np.ndarray) -> None:
        """Let labels at the same place live or die together; arrays are broadcast."""
        for other in others:
            a, b = np.broadcast_arrays(first, other)
            different = a != b
            if different.any():
                self._pairs.append((a[different], b[different]))

    def tie(self, first: np.ndarray, second: np.ndarray) -> None:
        """Let as many labels of one 1-D array go as of the other, of equal length."""
        self.tied.append((first, second))

    def join(self, array: np.ndarray, axes: Sequence[int], why: str = "") -> np.ndarray:
        """Unite labels along `axes`, and return one of each with these axes of size 1.

        Args:
            array: labels.
            axes: axes along which they live or die together.
            why: what a user is told if nothing of them can be removed for it.
        """
        one = array
        for axis in axes:
            one = one.take([0], axis % array.ndim)
        self.unite(array, one)
        if why:
            self._notes.append((one, why))
        return one

    def only_along(self, x: LabelledTensor, axis: int) -> np.ndarray:
        """Return the labels along one axis, united over all other places."""
        axis %= len(x.shape)
        others = [other for other in range(len(x.shape)) if other != axis]
        self.join(x.array, others)
        return along(x, axis)

    def freeze(self, array: np.ndarray, why: str) -> np.ndarray:
        """Let labels stay whatever happens, and return them."""
        self._frozen.append((np.unique(array), why))
        return array

    def frozen(self, rank: int, why: str) -> np.ndarray:
        """Return the labels of a tensor that stays as it is."""
        return self.freeze(self.fresh(*(1,) * rank), why)

    def weigh(
        self,
        variable: Variable,
        role: str,
        array: np.ndarray,
        *,
        silenced: bool = False,
    ) -> None:
        """Note the labels along some axes of a weight, once for each of its calls."""
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
        """Note labels along one axis of a weight."""
        array = axis_of(vector, axis, len(variable.shape))
        self.weigh(variable, role, array, silenced=silenced)

    def classes(self) -> np.ndarray:
        """Return the class of every label: the smallest label in it."""
        smallest = np.arange(self.count)
        if self._pairs:
            a = np.concatenate([pair[0].ravel() for pair in self._pairs])
            b = np.concatenate([pair[1].ravel() for pair in self._pairs])
            smallest = components(self.count, a, b)
        return smallest

    def reasons(self, classes: np.ndarray) -> dict[int, str]:
        """Return the frozen classes, and why each of them is."""
        return _by_class(self._frozen, classes)

    def notes(self, classes: np.ndarray) -> dict[int, str]:
        """Return what ties classes together, to tell a user why one must stay."""
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
    """Return for each of `count` nodes the smallest one that edges connect it to.

    Args:
        count: number of nodes, from 0.
        a: first ends of the edges, 1-D.
        b: second ends, of the same length.

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
