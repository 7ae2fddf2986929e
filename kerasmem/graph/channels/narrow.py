"""What is different in a model of fewer channels."""

from collections.abc import Iterable, Sequence
from typing import Any

from kerasmem.errors import ModelError
from kerasmem.graph.channels.labelled_calls import ChannelSubset
from kerasmem.graph.channels.labels import fits
from kerasmem.graph.channels.walk import LabelledModel, family_of
from kerasmem.graph.rebuild import Rewrite, variable_pairs
from kerasmem.graph.values import to_numpy
from kerasmem.types import Node, Tensor


class Narrow(Rewrite):
    """Only the channels that stay.

    Args:
        labelled: the labels of the model.
        subset: the channels that stay.
    """

    def __init__(self, labelled: LabelledModel, subset: ChannelSubset) -> None:
        self._labelled = labelled
        self._subset = subset
        self._factors: dict[int, float] = {}

    def config(self, node: Node) -> dict[str, Any] | None:
        """Return the new numbers of channels."""
        family = family_of(node.operation)
        if family is None:
            return None
        call = self._labelled.calls[id(node)]
        self._factors.update(family.factors(call, self._subset))
        return family.config(call, self._subset)

    def arguments(self, node: Node, args: Sequence[Any]) -> Sequence[Any]:
        """Return arguments with the new places of what an operation takes out."""
        family = family_of(node.operation)
        if family is None:
            return args
        new = family.arguments(self._labelled.calls[id(node)], self._subset)
        return args if new is None else (args[0], *new)

    def check(self, node: Node, outputs: Sequence[Any]) -> None:
        """Raise unless outputs have the shapes that the labels say.

        Raises:
            ModelError: if one has another.
        """
        for old, new in zip(node.outputs, outputs, strict=True):
            shape, new_shape = (
                self._subset.shape(self._labelled.tensors[id(old)]),
                new.shape,
            )
            if not fits(new_shape, shape):
                raise ModelError(
                    f"Without channels {node.operation.name!r} does not give what its "
                    f"labels say. Expected the shape {shape}. Received: {new_shape}. "
                    "This is a defect of kerasmem. Next: name the layers around in "
                    "`ignore`, and report it."
                )

    def input_shape(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Return the shape without the channels that go."""
        return self._subset.shape(self._labelled.tensors[id(tensor)])

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        """Return the part of every weight that stays."""
        for before, after in variable_pairs([(old, new)]):
            value = self._subset.gather(before, to_numpy(before))
            factor = self._factors.get(id(before), 1.0)
            yield after, value if factor == 1.0 else value * factor
