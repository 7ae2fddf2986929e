"""One call on labelled tensors, which channels stay, and what a family knows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from kerasmem.graph.channels.labels import (
    CHANNEL,
    LabelledTensor,
    Labels,
    Shape,
    Use,
    standing_in,
    varying,
)
from kerasmem.types import Variable


class ChannelSubset:
    """The channels that stay.

    Args:
        classes: the class of every label.
        removed: the classes that go.
        uses: the labels of weights.
        notes: classes of which some stay for a reason of their own, and that reason.
    """

    def __init__(
        self,
        classes: np.ndarray,
        removed: np.ndarray,
        uses: Sequence[Use],
        notes: Mapping[int, str] | None = None,
    ) -> None:
        self.removed = removed
        self.notes = dict(notes or {})
        self._stays = ~np.isin(classes, removed)
        self._uses: dict[int, list[Use]] = {}
        for use in uses:
            self._uses.setdefault(id(use.variable), []).append(use)

    def mask(self, x: LabelledTensor, axis: int) -> np.ndarray:
        """Return a bool for every place along one axis of a tensor."""
        axis %= len(x.shape)
        size = standing_in(x.shape)[axis]
        if axis not in self._shrinking(x.array):
            return np.ones(size, bool)
        return self._mask(x.array, axis, size)

    def shape(self, x: LabelledTensor) -> tuple[int | None, ...]:
        """Return the shape of a tensor once channels are gone."""
        shape = list(x.shape)
        for axis in self._shrinking(x.array):
            shape[axis] = int(self.mask(x, axis).sum())
        return tuple(shape)

    def weight_shape(self, variable: Variable) -> tuple[int, ...]:
        """Return the shape of a weight once channels are gone."""
        return tuple(
            int(mask.sum()) if mask is not None else size
            for mask, size in zip(self.masks(variable), variable.shape, strict=True)
        )

    def masks(self, variable: Variable) -> list[np.ndarray | None]:
        """Return a bool for every place along each axis of a weight, None for all."""
        masks: list[np.ndarray | None] = [None] * len(variable.shape)
        for use in self._uses.get(id(variable), ()):
            for axis in self._shrinking(use.labels):
                mask = self._mask(use.labels, axis, variable.shape[axis])
                before = masks[axis]
                masks[axis] = mask if before is None else mask & before
        return masks

    def gather(self, variable: Variable, value: np.ndarray) -> np.ndarray:
        """Return the entries that stay of a value of the shape of a weight."""
        for axis, mask in enumerate(self.masks(variable)):
            if mask is not None:
                value = np.compress(mask, value, axis)
        return value

    def silences(self, variable: Variable) -> bool:
        """Return True if `silence` changes values of a weight."""
        return any(
            use.silenced and not self._stays[use.labels].all()
            for use in self._uses.get(id(variable), ())
        )

    def silence(self, variable: Variable, value: np.ndarray) -> np.ndarray:
        """Return a value with zeros where it takes part in what is removed."""
        for use in self._uses.get(id(variable), ()):
            if use.silenced:
                stays = self._stays[use.labels]
                value = np.where(stays, value, np.zeros((), value.dtype))
        return value

    def _shrinking(self, array: np.ndarray) -> list[int]:
        stays = self._stays[array]
        return [] if stays.all() else varying(stays)

    def _mask(self, array: np.ndarray, axis: int, size: int) -> np.ndarray:
        place: list[Any] = [0] * array.ndim
        place[axis] = slice(None)
        return np.broadcast_to(self._stays[array[tuple(place)]], (size,))


Addition = tuple[Shape, Shape]
"""The shapes of the two operands of one `keras.ops.add`, in order."""


@dataclass(frozen=True, eq=False)
class LabelledCall:
    """One call of one operation.

    Args:
        operation: the layer, or the `keras.Operation` of a call such as `a + b`.
        args: its arguments, with a `LabelledTensor` for every `KerasTensor`.
        kwargs: likewise.
        shapes: the shapes of its outputs.
        labels: the labels of the model.
        outputs: the labels of its outputs, once they are known.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[Shape, ...]
    labels: Labels
    outputs: list[LabelledTensor] = field(default_factory=list)

    @property
    def inputs(self) -> list[LabelledTensor]:
        """The tensors that go in, in order."""
        values = keras.tree.flatten((self.args, self.kwargs))
        return [x for x in values if isinstance(x, LabelledTensor)]

    @property
    def x(self) -> LabelledTensor:
        """The first tensor that goes in."""
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """The shape of the first output."""
        return self.shapes[0]

    @property
    def rank(self) -> int:
        """The rank of the first output."""
        return len(self.shapes[0])

    def frozen(self, why: str) -> list[np.ndarray]:
        """Freeze what goes in and its weights; return labels for what comes out."""
        for x in self.inputs:
            self.labels.freeze(x.array, why)
        for variable in getattr(self.operation, "weights", ()):
            own = self.labels.frozen(len(variable.shape), why)
            self.labels.weigh(variable, CHANNEL, own)
        return [self.labels.frozen(len(shape), why) for shape in self.shapes]


Config = Callable[[LabelledCall, ChannelSubset], dict[str, Any]]
"""Returns the entries of an operation's config that change with its channels."""


def length(argument: str, weight: str, axis: int) -> Config:
    """Return a config whose one entry is the length of an axis of a weight.

    Args:
        argument: the entry.
        weight: the attribute that holds the weight.
        axis: the axis of the weight.
    """
    return lambda call, subset: {
        argument: subset.weight_shape(getattr(call.operation, weight))[axis]
    }


@dataclass(frozen=True)
class Family:
    """What is known of a kind of operation.

    Args:
        label: returns the labels of its outputs, one array each; unites and freezes
            labels and notes those of its weights on the way.
        config: returns the entries of its config that change with its channels.
        arguments: returns its positional arguments after the first for the smaller
            graph, None if they stay.
        factors: returns numbers to multiply weights with, by the id of the variable.
        additions: returns what it adds up by broadcasting, once channels are gone.
    """

    label: Callable[[LabelledCall], Sequence[np.ndarray]]
    config: Config = lambda *_: {}
    arguments: Callable[[LabelledCall, ChannelSubset], tuple[Any, ...] | None] = (
        lambda *_: None
    )
    factors: Callable[[LabelledCall, ChannelSubset], dict[int, float]] = lambda *_: {}
    additions: Callable[[LabelledCall, ChannelSubset], list[Addition]] = lambda *_: []
