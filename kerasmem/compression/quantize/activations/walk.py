"""One forward pass of a model, tensor by tensor, none kept longer than it is needed."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras

from kerasmem.graph.nodes import nodes_in_order, own_graph

See = Callable[[str, Any], None]


def walk(model: Any, inputs: Sequence[Any], see: See) -> None:
    """Run `model` in inference and show every tensor as it comes.

    Models within it are opened. Each call of a shared layer has a name of its own:
    `"dense"`, `"dense:1"`; so has each further output: `"split"`, `"split.1"`.

    Args:
        model: a built model with a graph.
        inputs: a tensor per input, in order.
        see: is called with the name of a tensor and the tensor.
    """
    graph = own_graph(model)
    for tensor, value in zip(graph.inputs, inputs, strict=True):
        see(tensor.name, value)
    _walk_graph(graph, inputs, see, "")


def _walk_graph(graph: Any, inputs: Sequence[Any], see: See, prefix: str) -> list[Any]:
    nodes = nodes_in_order(graph)
    uses = Counter(id(t) for node in nodes for t in node.arguments.keras_tensors)
    uses.update(map(id, graph.outputs))
    known = dict(zip(map(id, graph.inputs), inputs, strict=True))
    calls: Counter[str] = Counter()
    for node in nodes:
        name = f"{prefix}{node.operation.name}"
        number, calls[name] = calls[name], calls[name] + 1
        name = f"{name}:{number}" if number else name
        args, kwargs = node.arguments.fill_in(known)
        outputs = _run(node.operation, args, kwargs, see, name)
        known.update(zip(map(id, node.outputs), outputs, strict=True))
        for tensor in node.arguments.keras_tensors:
            uses[id(tensor)] -= 1
            if not uses[id(tensor)]:
                known.pop(id(tensor), None)
    return [known[id(tensor)] for tensor in graph.outputs]


def _run(
    operation: Any, args: tuple, kwargs: dict[str, Any], see: See, name: str
) -> list[Any]:
    inner = own_graph(operation)
    if inner is not None:
        return _walk_graph(inner, keras.tree.flatten(args[0]), see, f"{name}/")
    # Outside of a model's call a layer runs in inference unless it is told otherwise.
    outputs = keras.tree.flatten(operation(*args, **kwargs))
    for number, output in enumerate(outputs):
        see(f"{name}.{number}" if number else name, output)
    return outputs
