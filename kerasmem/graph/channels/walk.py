"""Labelling the channels of a model, call by call."""

from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.channels.arrays import Tensor, narrow, of_rank
from kerasmem.graph.channels.call import Call, Family
from kerasmem.graph.channels.kind import kind
from kerasmem.graph.channels.labels import Labels
from kerasmem.graph.channels.table import FAMILIES
from kerasmem.graph.nodes import nodes_in_order, own_graph


@dataclass(frozen=True, eq=False)
class LabelledModel:
    """A model with labels on every channel.

    Args:
        labels: the labels, their pairs, and those of the weights.
        calls: every call of the model and of models in it, by the id of its node.
        tensors: the labels of every `KerasTensor`, by its id.
        unknown: names of operations that nothing is known of, with why.
    """

    labels: Labels
    calls: dict[int, Call]
    tensors: dict[int, Tensor]
    unknown: dict[str, str]


def label_channels(model: Any) -> LabelledModel:
    """Return the labels of the channels of a model with a graph.

    Raises:
        ModelError: if the model has no graph.
    """
    graph = own_graph(model)
    if graph is None:
        raise ModelError(
            f"The model {model.name!r} has no graph of layers to follow its channels "
            "through. Expected a Sequential or Functional model. "
            f"Received: {type(model).__name__}."
        )
    labels = Labels()
    found = LabelledModel(labels, {}, {}, {})
    inputs = []
    for x in graph.inputs:
        why = f"is the input {x.name!r}"
        inputs.append(Tensor(labels.frozen(len(x.shape), why), tuple(x.shape)))
    for number, y in enumerate(_follow(found, graph, inputs)):
        labels.freeze(y.array, f"reaches output {number} of the model")
    labels.tensors.extend(found.tensors.values())
    return found


def family_of(operation: Any) -> Family | None:
    """Return what is known of an operation, None if nothing is."""
    if getattr(operation, "quantization_mode", None) or getattr(
        operation, "lora_enabled", False
    ):
        return None
    return FAMILIES.get(kind(operation) or "")


def _follow(found: LabelledModel, graph: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Label a graph from its inputs on, and return the labels of its outputs."""
    for x, given in zip(graph.inputs, inputs, strict=True):
        _know(found, x, given)
    for node in nodes_in_order(graph):
        args, kwargs = node.arguments.fill_in(found.tensors)
        shapes = tuple(tuple(y.shape) for y in node.outputs)
        call = Call(node.operation, args, kwargs, shapes, found.labels)
        call.made.extend(_outputs(found, call))
        for y, made in zip(node.outputs, call.made, strict=True):
            _know(found, y, made)
        found.calls[id(node)] = call
    return [found.tensors[id(y)] for y in graph.outputs]


def _know(found: LabelledModel, tensor: Any, given: Tensor) -> None:
    """Note the labels of a tensor, which a shared model meets several times."""
    before = found.tensors.get(id(tensor))
    if before is None:
        found.tensors[id(tensor)] = Tensor(given.array, tuple(tensor.shape))
    else:
        found.labels.unite(before.array, given.array)


def _outputs(found: LabelledModel, call: Call) -> list[Tensor]:
    graph = own_graph(call.operation)
    if graph is not None:
        return _follow(found, graph, keras.tree.flatten(call.args[0]))
    family = family_of(call.operation)
    if family is None:
        why = f"{type(call.operation).__name__} {call.operation.name!r} is not known"
        found.unknown[call.operation.name] = why
        arrays = call.frozen(f"is next to an operation of an unknown kind: {why}")
    else:
        arrays = family.label(call)
    return [
        Tensor(_closed(call, narrow(of_rank(array, len(shape))), shape), shape)
        for array, shape in zip(arrays, call.shapes, strict=True)
    ]


def _closed(call: Call, array: Any, shape: tuple[int | None, ...]) -> Any:
    """Freeze labels that change along an axis whose length the model leaves open."""
    for axis, size in enumerate(shape):
        if size is None and array.shape[axis] > 1:
            why = f"{call.operation.name!r} moves it to an axis without a fixed length"
            return call.labels.freeze(array, why).take([0], axis)
    return array
