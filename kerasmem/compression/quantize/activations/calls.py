"""The calls of one forward pass with their names, models within a model opened."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.graph.nodes import (
    first_argument,
    is_trained,
    nodes_in_order,
    own_graph,
)

Part = tuple[str, Any, tuple[int, ...]]
"""What follows a name, a layer, and what it takes: places in the list of the input and
the outputs of the parts before it."""

Split = Callable[[Any], Sequence[Part] | None]
"""Returns the layers that compute what one does."""


@dataclass(frozen=True)
class Call:
    """One operation called once.

    Args:
        name: its name, with the models around it and the number of the call.
        whole: the name of the call in the model that it is a part of, mostly its own.
        operation: what is called.
        layer: the layer of the model that it belongs to, mostly itself.
        inputs: numbers of the tensors that go in.
        outputs: numbers of those that come out.
        arguments: gives the arguments, of tensors by number.
        is_trained: whether it is called with `training=True`, or a model around it.
    """

    name: str
    whole: str
    operation: Any
    layer: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: Callable[[dict[int, Any]], tuple[tuple, dict[str, Any]]]
    is_trained: bool = False

    @property
    def output_names(self) -> list[str]:
        """A name for every output: `"split"`, `"split.1"`."""
        numbers = range(len(self.outputs))
        return [f"{self.name}.{number}" if number else self.name for number in numbers]


@dataclass(frozen=True)
class Calls:
    """All calls, in order.

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


def flatten(
    model: Any, split: Split = lambda _: None, whole: Container[str] = ()
) -> Calls:
    """Return the calls of a model with a graph.

    Each call of a shared layer has a name of its own: `"dense"`, `"dense:1"`.

    Args:
        model: a built Sequential or Functional model.
        split: may put several layers in the place of one.
        whole: names of calls where it may not.
    """
    graph = own_graph(model)
    pass_ = _Pass(split, whole)
    inputs = [pass_.number(tensor, tensor.name) for tensor in graph.inputs]
    outputs = pass_.graph(graph, inputs, "")
    tensors, names = zip(*pass_.tensors, strict=True)
    return Calls(tuple(pass_.calls), tuple(inputs), tuple(outputs), tensors, names)


class _Pass:
    def __init__(self, split: Split, whole: Container[str]) -> None:
        self._split, self._whole = split, whole
        self.calls: list[Call] = []
        self.tensors: list[tuple[Any, str]] = []

    def number(self, tensor: Any, name: str) -> int:
        self.tensors.append((tensor, name))
        return len(self.tensors) - 1

    def graph(
        self,
        graph: Any,
        inputs: Sequence[int],
        prefix: str,
        *,
        trained: bool = False,
    ) -> list[int]:
        known = dict(zip(map(id, graph.inputs), inputs, strict=True))
        counts: Counter[str] = Counter()
        for node in nodes_in_order(graph):
            name = f"{prefix}{node.operation.name}"
            number, counts[name] = counts[name], counts[name] + 1
            name = f"{name}:{number}" if number else name
            now = trained or is_trained(node)
            outputs = self._node(node, name, known, trained=now)
            known.update(zip(map(id, node.outputs), outputs, strict=True))
        return [known[id(tensor)] for tensor in graph.outputs]

    def _node(
        self, node: Any, name: str, known: dict[int, int], *, trained: bool
    ) -> list[int]:
        inner = own_graph(node.operation)
        if inner is not None:
            # Beside the inputs there may be a mask.
            given = keras.tree.flatten(
                first_argument(node.arguments.args, node.arguments.kwargs)
            )
            inputs = [known[id(tensor)] for tensor in given]
            return self.graph(inner, inputs, f"{name}/", trained=trained)
        taken = tuple(known[id(tensor)] for tensor in node.arguments.keras_tensors)
        parts = None if name in self._whole else self._split(node.operation)
        if parts is not None:
            return self._parts(parts, node, name, taken, trained=trained)
        places = dict(zip(map(id, node.arguments.keras_tensors), taken, strict=True))

        def arguments(values: dict[int, Any]) -> tuple[tuple, dict[str, Any]]:
            return node.arguments.fill_in({k: values[n] for k, n in places.items()})

        outputs = keras.tree.flatten(node.outputs)
        names = [f"{name}.{i}" if i else name for i in range(len(outputs))]
        numbers = tuple(map(self.number, outputs, names))
        layer = node.operation
        made = Call(name, name, layer, layer, taken, numbers, arguments, trained)
        self.calls.append(made)
        return list(numbers)

    def _parts(
        self,
        parts: Sequence[Part],
        node: Any,
        name: str,
        taken: tuple[int, ...],
        *,
        trained: bool,
    ) -> list[int]:
        results = list(taken)
        for suffix, layer, places in parts:
            inputs = tuple(results[place] for place in places)
            tensors = [self.tensors[number][0] for number in inputs]
            tensor = layer.compute_output_spec(_one_or_all(tensors))
            output = self.number(tensor, name + suffix)

            def arguments(values: dict[int, Any], numbers: tuple = inputs) -> Any:
                return (_one_or_all([values[number] for number in numbers]),), {}

            made = Call(
                name + suffix,
                name,
                layer,
                node.operation,
                inputs,
                (output,),
                arguments,
                trained,
            )
            self.calls.append(made)
            results.append(output)
        return results[-1:]


def _one_or_all(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else tensors
