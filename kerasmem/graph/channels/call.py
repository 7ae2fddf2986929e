"""One call of an operation on labelled tensors, and what a family of them knows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.graph.channels.labels import CHANNEL, Labels, Shape, Tensor

if TYPE_CHECKING:
    from kerasmem.graph.channels.kept import Kept

Addition = tuple[Shape, Shape]
"""The shapes of the two operands of one `keras.ops.add`, in order."""


@dataclass(frozen=True, eq=False)
class LabelledCall:
    """One call of one operation.

    Args:
        operation: the layer, or the `keras.Operation` of a call such as `a + b`.
        args: its arguments, with a `Tensor` for every `KerasTensor`.
        kwargs: likewise.
        shapes: the shapes of its outputs.
        labels: the labels of the model.
        made: the labels of its outputs, once they are known.
    """

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[Shape, ...]
    labels: Labels
    made: list[Tensor] = field(default_factory=list)

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that go in, in order."""
        given = keras.tree.flatten((self.args, self.kwargs))
        return [x for x in given if isinstance(x, Tensor)]

    @property
    def x(self) -> Tensor:
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
    config: Callable[[LabelledCall, "Kept"], dict[str, Any]] = lambda *_: {}
    arguments: Callable[[LabelledCall, "Kept"], tuple[Any, ...] | None] = lambda *_: (
        None
    )
    factors: Callable[[LabelledCall, "Kept"], dict[int, float]] = lambda *_: {}
    additions: Callable[[LabelledCall, "Kept"], list[Addition]] = lambda *_: []
