"""Shapes of tensors in the loops of a LiteRT file."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kerasmem.extras.litert.interpreters import LiteRT, litert_module


def shapes_in_loops(
    content: bytes, batch: Mapping[str, np.ndarray]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in loop bodies, with the steps as first axes.

    The steps are those of a run on the batch. Other bodies count as one step.
    """
    schema = litert_module("schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    if len(model.subgraphs) == 1:
        return {}
    file = LiteRT(content, keeps_tensors=True)
    file(dict(batch))
    steps = {0: 1}
    for outer, body, before, after in _counters(model, schema):
        count = int(file.value(after, outer) - file.value(before, outer))
        steps[body] = steps.get(outer, 1) * count
    return {
        tensor.name.decode(): (steps.get(place, 1), *map(int, tensor.shape))
        for place, graph in enumerate(model.subgraphs)
        for tensor in graph.tensors
        if place > 0 and tensor.shape is not None
    }


def _counters(model: Any, schema: Any) -> Iterator[tuple[int, int, int, int]]:
    """Yield graph, body and the counter's tensors before and after each loop."""
    for outer, graph in enumerate(model.subgraphs):
        for operator in graph.operators:
            if kind_of(model, operator) != schema.BuiltinOperator.WHILE:
                continue
            number = operator.builtinOptions.bodySubgraphIndex
            body = model.subgraphs[number]
            place = _place_of_counter(model, body, schema)
            if place is not None:
                yield outer, number, operator.inputs[place], operator.outputs[place]


def _place_of_counter(model: Any, body: Any, schema: Any) -> int | None:
    """Return the place of a loop variable that grows by one in each step."""
    makers = {n: operator for operator in body.operators for n in operator.outputs}
    for place, (start, end) in enumerate(zip(body.inputs, body.outputs, strict=True)):
        maker = makers.get(end)
        if maker is None or kind_of(model, maker) != schema.BuiltinOperator.ADD:
            continue
        others = [number for number in maker.inputs if number != start]
        if len(others) == 1 and _is_one(model, body.tensors[others[0]], schema):
            return place
    return None


def _is_one(model: Any, tensor: Any, schema: Any) -> bool:
    data = model.buffers[tensor.buffer].data
    if tensor.type != schema.TensorType.INT32 or data is None:
        return False
    values = np.asarray(data, np.uint8).view("<i4")
    return values.size == 1 and int(values[0]) == 1


def kind_of(model: Any, operator: Any) -> int:
    """Return the number of an operation's type in LiteRT's schema."""
    return builtin_of(model.operatorCodes[operator.opcodeIndex])


def builtin_of(code: Any) -> int:
    """Return the number of an entry in a file's list of operation types."""
    return max(code.builtinCode, code.deprecatedBuiltinCode)
