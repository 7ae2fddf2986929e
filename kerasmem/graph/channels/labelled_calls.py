"""Labelled calls, subsets of channels, and rules of operation families."""

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
    """A subset of the channels of a model.

    `classes` contains the class of every label. `notes` contains the reasons why some
    classes are kept.
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
        """Returns a bool mask along one axis of a tensor."""
        axis %= len(x.shape)
        size = standing_in(x.shape)[axis]
        if axis not in self._shrinking(x.array):
            return np.ones(size, bool)
        return self._mask(x.array, axis, size)

    def shape(self, x: LabelledTensor) -> tuple[int | None, ...]:
        """Returns the shape of a tensor without removed channels."""
        shape = list(x.shape)
        for axis in self._shrinking(x.array):
            shape[axis] = int(self.mask(x, axis).sum())
        return tuple(shape)

    def weight_shape(self, variable: Variable) -> tuple[int, ...]:
        """Returns the shape of a weight without removed channels."""
        return tuple(
            int(mask.sum()) if mask is not None else size
            for mask, size in zip(self.masks(variable), variable.shape, strict=True)
        )

    def masks(self, variable: Variable) -> list[np.ndarray | None]:
        """Returns a bool mask along each axis of a weight, or None to keep all."""
        masks: list[np.ndarray | None] = [None] * len(variable.shape)
        for use in self._uses.get(id(variable), ()):
            for axis in self._shrinking(use.labels):
                mask = self._mask(use.labels, axis, variable.shape[axis])
                before = masks[axis]
                masks[axis] = mask if before is None else mask & before
        return masks

    def gather(self, variable: Variable, value: np.ndarray) -> np.ndarray:
        """Returns the remaining entries of the value of a weight."""
        for axis, mask in enumerate(self.masks(variable)):
            if mask is not None:
                value = np.compress(mask, value, axis)
        return value

    def silences(self, variable: Variable) -> bool:
        """Returns whether `silence` changes values of a weight."""
        return any(
            use.silenced and not self._stays[use.labels].all()
            for use in self._uses.get(id(variable), ())
        )

    def silence(self, variable: Variable, value: np.ndarray) -> np.ndarray:
        """Returns the value of a weight with zeros at removed channels."""
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
"""Shapes of the two operands of one `keras.ops.add`."""


@dataclass(frozen=True, eq=False)
class LabelledCall:
    """One call of one operation on labelled tensors.

    The arguments contain a `LabelledTensor` for every `KerasTensor`. `outputs` is set
    after labelling.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[Shape, ...]
    labels: Labels
    outputs: list[LabelledTensor] = field(default_factory=list)

    @property
    def inputs(self) -> list[LabelledTensor]:
        """Input tensors in order."""
        values = keras.tree.flatten((self.args, self.kwargs))
        return [x for x in values if isinstance(x, LabelledTensor)]

    @property
    def x(self) -> LabelledTensor:
        """First input tensor."""
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """Shape of the first output."""
        return self.shapes[0]

    @property
    def rank(self) -> int:
        """Rank of the first output."""
        return len(self.shapes[0])

    def frozen(self, why: str) -> list[np.ndarray]:
        """Freezes inputs and weights. Returns frozen labels for the outputs."""
        for x in self.inputs:
            self.labels.freeze(x.array, why)
        for variable in getattr(self.operation, "weights", ()):
            own = self.labels.frozen(len(variable.shape), why)
            self.labels.weigh(variable, CHANNEL, own)
        return [self.labels.frozen(len(shape), why) for shape in self.shapes]


Config = Callable[[LabelledCall, ChannelSubset], dict[str, Any]]
"""Returns the config entries that change with the number of channels."""


def length(argument: str, weight: str, axis: int) -> Config:
    """Returns a config function for the length of a weight axis."""
    return lambda call, subset: {
        argument: subset.weight_shape(getattr(call.operation, weight))[axis]
    }


@dataclass(frozen=True)
class Family:
    """Rules of an operation family.

    Args:
        label: Returns one array of labels per output. Also unites and freezes labels,
            and records the labels of weights.
        config: Returns the config entries that change with the number of channels.
        arguments: Returns the positional arguments after the first one for the smaller
            graph, or None if unchanged.
        factors: Returns factors for weights, by `id` of the variable.
        additions: Returns the broadcast additions for the remaining channels.
    """

    label: Callable[[LabelledCall], Sequence[np.ndarray]]
    config: Config = lambda *_: {}
    arguments: Callable[[LabelledCall, ChannelSubset], tuple[Any, ...] | None] = (
        lambda *_: None
    )
    factors: Callable[[LabelledCall, ChannelSubset], dict[int, float]] = lambda *_: {}
    additions: Callable[[LabelledCall, ChannelSubset], list[Addition]] = lambda *_: []
