"""The bytes of every output and of what is stored of it, by arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from kerasmem.graph.nodes import own_graph
from kerasmem.graph.values import nbytes
from kerasmem.memory.compress_activations.math import packed_bytes
from kerasmem.memory.compress_activations.plan import GraphPlan, Step
from kerasmem.memory.compress_activations.record import FATES, LayerBytes
from kerasmem.memory.compress_activations.store import EmptyStore

_PACKED, _AS_IT_IS, _NOT_STORED = FATES


def layer_bytes(
    model: Any, plans: Sequence[GraphPlan], x: Any
) -> tuple[LayerBytes, ...]:
    """Return a record of every output, in the order in which a step makes them.

    Args:
        model: the model.
        plans: those of it and of the models inside of it.
        x: what goes in, for its shapes: an array, or a list or dict of arrays.
    """
    symbols = own_graph(model).inputs
    given = [x[symbol.name] for symbol in symbols] if isinstance(x, dict) else x
    arrays = given if isinstance(given, list | tuple) else [given]
    data = [
        _Value("", keras.KerasTensor(array.shape, symbol.dtype))
        for array, symbol in zip(arrays, symbols, strict=True)
    ]
    count = _Count({id(found.model): found for found in plans})
    for value in count.run(model, data):
        value.whole = True
    return tuple(value.record() for value in count.made)


@dataclass(eq=False)
class _Value:
    """A tensor, how many packed copies of it are stored, and whether it is itself."""

    layer: str
    spec: Any
    packed: int = 0
    whole: bool = False

    def store(self, number: int, step: Step) -> None:
        """Count what is stored for a step of which this is an input."""
        if step.store is None:
            self.whole = True
        elif isinstance(step.store, EmptyStore):
            self.whole |= number not in step.store.dropped
        else:
            packs = number in step.store.packed
            self.packed += packs
            self.whole |= not packs

    def record(self) -> LayerBytes:
        """Return the figures."""
        size = nbytes(self.spec)
        packed = self.packed * packed_bytes(self.spec.shape)
        fate = _AS_IT_IS if self.whole else _PACKED if self.packed else _NOT_STORED
        return LayerBytes(self.layer, size, self.whole * size + packed, fate)


@dataclass
class _Count:
    plans: dict[int, GraphPlan]
    made: list[_Value] = field(default_factory=list[_Value])

    def run(self, model: Any, inputs: Sequence[_Value]) -> list[_Value]:
        """Return the outputs of a model; count what it makes and stores."""
        graph = own_graph(model)
        known = dict(zip(map(id, graph.inputs), inputs, strict=True))
        for step in self.plans[id(model)].steps:
            for number, symbol in enumerate(step.segment.inputs):
                # A nested model that is opened stores for itself.
                if not self._opened(step):
                    known[id(symbol)].store(number, step)
            for node in step.segment.nodes:
                outputs = self._call(node, known, whole=step.store is None)
                known.update(zip(map(id, node.outputs), outputs, strict=True))
        return [known[id(y)] for y in graph.outputs]

    def _opened(self, step: Step) -> bool:
        return all(id(node.operation) in self.plans for node in step.segment.nodes)

    def _call(
        self, node: Any, known: dict[int, _Value], *, whole: bool
    ) -> list[_Value]:
        operation = node.operation
        if id(operation) in self.plans:
            return self.run(operation, [known[id(x)] for x in node.input_tensors])
        specs = {key: value.spec for key, value in known.items()}
        args, kwargs = node.arguments.fill_in(specs)
        specs = keras.tree.flatten(operation.compute_output_spec(*args, **kwargs))
        values = [_Value(operation.name, spec, whole=whole) for spec in specs]
        self.made.extend(values)
        return values
