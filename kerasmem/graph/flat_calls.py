"""The calls of one forward pass by number and name, and one run of them.

A walk may put several calls in the place of one. No tensor of a run is kept longer than
it is needed.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.graph.calls import Call, Walk, in_inference, one_or_all
from kerasmem.graph.layers import own_graph
from kerasmem.types import Model, Tensor

Part = tuple[str, Any, tuple[int, ...]]
"""What follows a name, a layer, and what it takes: places in the list of the input and
the outputs of the parts before it."""

Split = Callable[[Any], Sequence[Part] | None]
"""Returns the layers that compute what one does."""

See = Callable[[str, Any], None]


@dataclass(frozen=True)
class Calls:
    """All calls, in order; their values are numbers of tensors.

    Args:
        calls: them.
        inputs: numbers of the model's inputs.
        outputs: numbers of its outputs.
        tensors: a `KerasTensor` for every number.
        names: a name for every number.
    """

    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tensors: tuple[Any, ...]
    names: tuple[str, ...]

    def is_float(self, number: int) -> bool:
        """Return whether a tensor is one of floats."""
        return keras.backend.is_float_dtype(self.tensors[number].dtype)

    def run(self, inputs: Sequence[Any], see: See = lambda *_: None) -> list[Any]:
        """Run the calls in inference and show every tensor as it comes.

        None is kept longer than it is needed.

        Args:
            inputs: a tensor per input, in order.
            see: is called with the name of a tensor and the tensor.

        Returns:
            The tensors of the model's outputs.
        """
        uses = Counter(number for call in self.calls for number in call.inputs)
        uses.update(self.outputs)
        values = dict(zip(self.inputs, inputs, strict=True))
        for number, value in values.items():
            see(self.names[number], value)
        for call in self.calls:
            args, kwargs = call.arguments(values)
            outputs = keras.tree.flatten(call.operation(*args, **in_inference(kwargs)))
            for number, output in zip(call.outputs, outputs, strict=True):
                see(self.names[number], output)
                if uses[number]:
                    values[number] = output
            for number in call.inputs:
                uses[number] -= 1
                if not uses[number]:
                    values.pop(number, None)
        return [values[number] for number in self.outputs]


def flatten(
    model: Model, split: Split = lambda _: None, whole: Container[str] = ()
) -> Calls:
    """Return the calls of a model with a graph.

    Each call of a shared layer has a name of its own: `"dense"`, `"dense:1"`; so has
    each further output: `"split"`, `"split.1"`.

    Args:
        model: a built Sequential or Functional model; models within it are opened.
        split: may put several layers in the place of one.
        whole: names of calls where it may not.
    """
    graph = own_graph(model)
    walk = _Numbering(split, whole)
    inputs = [walk.number(tensor, tensor.name) for tensor in graph.inputs]
    outputs = walk.run(graph, inputs)
    tensors, names = zip(*walk.tensors, strict=True)
    return Calls(tuple(walk.calls), tuple(inputs), tuple(outputs), tensors, names)


class _Numbering(Walk):
    def __init__(self, split: Split, whole: Container[str]) -> None:
        self._split, self._whole = split, whole
        self.calls: list[Call] = []
        self.tensors: list[tuple[Any, str]] = []

    def number(self, tensor: Tensor, name: str) -> int:
        self.tensors.append((tensor, name))
        return len(self.tensors) - 1

    def visit(self, call: Call) -> Sequence[int]:
        parts = None if call.name in self._whole else self._split(call.operation)
        if parts is not None:
            return self._parts(call, parts)
        outputs = tuple(call.nodes[-1].outputs)
        names = replace(call, outputs=outputs).output_names
        numbered_call = replace(call, outputs=tuple(map(self.number, outputs, names)))
        self.calls.append(numbered_call)
        return numbered_call.outputs

    def _parts(self, call: Call, parts: Sequence[Part]) -> Sequence[int]:
        results = list(call.inputs)
        for suffix, layer, places in parts:
            inputs = tuple(results[place] for place in places)
            tensors = [self.tensors[number][0] for number in inputs]
            spec = layer.compute_output_spec(one_or_all(tensors))
            results.append(self.number(spec, call.name + suffix))
            part = Call(
                layer,
                inputs,
                (results[-1],),
                name=call.name + suffix,
                is_trained=call.is_trained,
                part_of=call,
            )
            self.calls.append(part)
        return results[-1:]
