"""Rebuilds a model with fewer channels."""

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
    """Keeps a subset of the channels."""

    def __init__(self, labelled: LabelledModel, subset: ChannelSubset) -> None:
        self._labelled = labelled
        self._subset = subset
        self._factors: dict[int, float] = {}

    def config(self, node: Node) -> dict[str, Any] | None:
        """Returns the new numbers of channels."""
        family = family_of(node.operation)
        if family is None:
            return None
        call = self._labelled.calls[id(node)]
        self._factors.update(family.factors(call, self._subset))
        return family.config(call, self._subset)

    def arguments(self, node: Node, args: Sequence[Any]) -> Sequence[Any]:
        """Returns the arguments with updated indices."""
        family = family_of(node.operation)
        if family is None:
            return args
        new = family.arguments(self._labelled.calls[id(node)], self._subset)
        return args if new is None else (args[0], *new)

    def check(self, node: Node, outputs: Sequence[Any]) -> None:
        """Checks that the output shapes match the labels."""
        for old, new in zip(node.outputs, outputs, strict=True):
            shape, new_shape = (
                self._subset.shape(self._labelled.tensors[id(old)]),
                new.shape,
            )
            if not fits(new_shape, shape):
                raise ModelError(
                    f"Without channels, the output shape of {node.operation.name!r} "
                    f"differs from its labels. Expected: {shape}. Received: "
                    f"{new_shape}. This is a defect of kerasmem. Next: add the layers "
                    "around to `ignore`, and report it."
                )

    def input_shape(self, tensor: Tensor) -> tuple[int | None, ...]:
        """Returns the shape without removed channels."""
        return self._subset.shape(self._labelled.tensors[id(tensor)])

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        """Returns the remaining entries of every weight."""
        for before, after in variable_pairs([(old, new)]):
            value = self._subset.gather(before, to_numpy(before))
            factor = self._factors.get(id(before), 1.0)
            yield after, value if factor == 1.0 else value * factor
