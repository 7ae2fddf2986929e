"""The calls of one forward pass as a flat list with numbered, named tensors."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.graph.calls import Call, Walk, in_inference, one_or_all
from kerasmem.graph.layers import own_graph
from kerasmem.types import Model, Tensor

Part = tuple[str, Any, tuple[int, ...]]
"""Name suffix, layer, and input indices of one part of a call. The indices refer to the
inputs of the call, followed by the outputs of the previous parts."""

Split = Callable[[Any], Sequence[Part] | None]
"""Returns the layers that replace a layer, or None."""

See = Callable[[str, Any], None]


@dataclass(frozen=True)
class Calls:
    """All calls in order, with tensors replaced by numbers.

    `tensors` and `names` contain the `KerasTensor` and the name of each number.
    """

    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tensors: tuple[Any, ...]
    names: tuple[str, ...]

    def is_float(self, number: int) -> bool:
        """Returns whether a tensor has a float dtype."""
        return keras.backend.is_float_dtype(self.tensors[number].dtype)

    def run(self, inputs: Sequence[Any], see: See = lambda *_: None) -> list[Any]:
        """Runs the calls in inference. Frees each tensor after its last use.

        `see` is called with the name and value of every tensor.
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
    """Returns the calls of a model with a graph, including nested models.

    Repeated calls and additional outputs have unique names: `"dense:1"`, `"split.1"`.
    `split` can replace a layer by several layers, except in the calls named in `whole`.
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
