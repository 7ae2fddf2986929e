"""Matrix products in the bodies of loops of an ONNX file."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kerasmem.errors import ModelError
from kerasmem.extras.litert.file_graph import FileOperation
from kerasmem.extras.litert.interpreters import Onnx

_PRODUCTS = ("MatMul", "Gemm")
_FIRST_STATE = 2
"""Inputs of a Loop and of its body before the states: steps or step, and condition."""
_PLAIN = {"alpha": 1.0, "beta": 1.0, "transA": 0}
"""Attributes of a Gemm that equals a MatMul with a bias."""


def bodies_of(node: Any) -> list[Any]:
    """Return the graphs in the attributes of a node."""
    return [each.g for each in node.attribute if each.HasField("g")]


def all_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of all graphs inside."""
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body)


def names_read(graph: Any) -> set[str]:
    """Return the names of all tensors that operations or outputs read."""
    names = {name for node in all_nodes(graph) for name in node.input}
    return names.union(each.name for each in graph.output)


def inline_weights(model: Any) -> None:
    """Let loop bodies read constants by name instead of as unchanged states.

    Otherwise onnxruntime cannot recognize a constant inside of a body.
    """
    graph = model.graph
    constants = {each.name for each in graph.initializer}
    for node in graph.node:
        if node.op_type != "Loop":
            continue
        (body,) = bodies_of(node)
        for place in reversed(range(len(node.input) - _FIRST_STATE)):
            _inline(graph, node, body, place, constants)


def _inline(graph: Any, node: Any, body: Any, place: int, constants: set[str]) -> None:
    constant = node.input[_FIRST_STATE + place]
    state, result = body.input[_FIRST_STATE + place].name, body.output[1 + place].name
    is_read = node.output[place] in names_read(graph)
    if constant not in constants or state != result or is_read:
        return
    for each in all_nodes(body):
        each.input[:] = [constant if name == state else name for name in each.input]
    del node.input[_FIRST_STATE + place], node.output[place]
    del body.input[_FIRST_STATE + place], body.output[1 + place]


def loop_products(model: Any) -> list[FileOperation]:
    """Return the matrix products in the bodies of loops and branches."""
    constants = {each.name for each in model.graph.initializer}
    return [
        FileOperation(
            node.op_type,
            tuple(name for name in node.input if name and name not in constants),
            tuple(name for name in node.input if name in constants),
            tuple(node.output),
            is_inner=True,
        )
        for outer in model.graph.node
        for body in bodies_of(outer)
        for node in all_nodes(body)
        if node.op_type in _PRODUCTS
    ]


def shapes_in_loops(
    content: bytes, batch: Mapping[str, np.ndarray]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs and outputs of products in loops.

    The steps are the first axis. Products in branches are left out.
    """
    onnx = importlib.import_module("onnx")
    model = onnx.load_from_string(content)
    names = {
        name: tensor
        for node in model.graph.node
        if node.op_type == "Loop"
        for name, tensor in _stack(node).items()
    }
    if not names:
        return {}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        arrays = Onnx(model.SerializeToString()).run(list(names), batch)
    except ModelError:  # the shapes differ between steps
        return {}
    return {
        tensor: array.shape
        for tensor, array in zip(names.values(), arrays, strict=True)
    }


def _stack(loop: Any) -> dict[str, str]:
    """Add outputs with the values of all steps, and return their tensors by name."""
    onnx = importlib.import_module("onnx")
    (body,) = bodies_of(loop)
    tensors = {}
    for node in list(body.node):
        if node.op_type in _PRODUCTS:
            tensors |= {f"{name}_step": name for name in (node.input[0], *node.output)}
        elif node.op_type == "Loop":
            tensors |= _stack(node)
    for name, tensor in list(tensors.items()):
        if name == f"{tensor}_step":
            body.node.append(onnx.helper.make_node("Identity", [tensor], [name]))
        body.output.append(onnx.ValueInfoProto(name=name))
    outputs = {f"{name}_{loop.output[0]}": t for name, t in tensors.items()}
    loop.output.extend(outputs)
    return outputs


def round_products(
    model: Any,
    operations: Sequence[FileOperation],
    constants: Mapping[str, np.ndarray],
) -> None:
    """Compute products in loops with int8 weights, and inputs rounded at run time.

    Raises:
        ModelError: If the integer form of a product is unknown.
    """
    onnx = importlib.import_module("onnx")
    names = {name for operation in operations for name in operation.outputs}
    bodies = [body for node in model.graph.node for body in bodies_of(node)]
    tensors = {}
    while bodies:
        body = bodies.pop()
        nodes = []
        for node in body.node:
            bodies += bodies_of(node)
            if names.isdisjoint(node.output):
                nodes.append(node)
                continue
            tensors |= _codes_of_product(node, constants)
            nodes += _in_integers(node)
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del body.node[:]
        body.node.extend(nodes)
    for name, array in tensors.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    _drop_unused(model)


def _codes_of_product(
    node: Any, constants: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    settings = {each.name: each.f or each.i for each in node.attribute}
    is_plain = all(settings.get(name, one) == one for name, one in _PLAIN.items())
    if not is_plain or node.input[1] not in constants:
        raise ModelError(
            f"A loop contains a {node.op_type} without an integer form. Expected: the "
            f"product of an activation and a weight. Received: {settings}."
        )
    kernel = constants[node.input[1]]
    kernel = kernel.T if settings.get("transB") else kernel
    codes, scales = codes_of(kernel, kernel.ndim - 1)
    return dict(zip(_names_of_codes(node), (codes, scales), strict=True))


def _names_of_codes(node: Any) -> tuple[str, str]:
    suffix = "".join(e.name for e in node.attribute if e.name == "transB" and e.i)
    return f"{node.input[1]}_integers{suffix}", f"{node.input[1]}_scale{suffix}"


def _in_integers(node: Any) -> list[Any]:
    onnx = importlib.import_module("onnx")
    make = onnx.helper.make_node
    x, (y,), bias = (
        node.input[0],
        node.output,
        [name for name in node.input[2:] if name],
    )
    codes, scales = _names_of_codes(node)
    product = f"{y}_product" if bias else y
    nodes = [
        make("DynamicQuantizeLinear", [x], [f"{y}_x", f"{y}_scale", f"{y}_zero"]),
        make("MatMulInteger", [f"{y}_x", codes, f"{y}_zero"], [f"{y}_sums"]),
        make("Cast", [f"{y}_sums"], [f"{y}_cast"], to=onnx.TensorProto.FLOAT),
        make("Mul", [f"{y}_scale", scales], [f"{y}_scales"]),
        make("Mul", [f"{y}_cast", f"{y}_scales"], [product]),
    ]
    return [*nodes, *(make("Add", [product, name], [y]) for name in bias)]


def codes_of(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes and one scale per entry of an axis."""
    others = tuple(n for n in range(values.ndim) if n != axis)
    scales = np.abs(values).max(axis=others) / np.float32(127)
    scales = np.where(scales == 0, np.float32(1), scales).astype(np.float32)
    shape = [-1 if n == axis else 1 for n in range(values.ndim)]
    return np.rint(values / scales.reshape(shape)).astype(np.int8), scales


def _drop_unused(model: Any) -> None:
    """Remove constants that no operation reads."""
    graph = model.graph
    names = names_read(graph)
    constants = [each for each in graph.initializer if each.name in names]
    del graph.initializer[:]
    graph.initializer.extend(constants)
