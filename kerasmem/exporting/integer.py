"""A model that computes with int8 codes as a LiteRT file, with the same integers."""

from collections.abc import Sequence
from typing import Any

from kerasmem.compression.quantize.static.base import (
    Codes,
    FromCodes,
    IntegerLayer,
    ToCodes,
)
from kerasmem.compression.quantize.static.kinds import kind_of, unsupported_call_of
from kerasmem.errors import ModelError
from kerasmem.exporting.operations import Lowering, check_relu6, ending, writer_of
from kerasmem.exporting.writer import Writer
from kerasmem.graph.layers import is_trained, listed_graph, nodes_in_order

_ANY = Codes(1.0, 0)  # an ending is one whatever its codes


def is_integer(model: Any) -> bool:
    """Return True for a model that computes with int8 codes, if only in parts."""
    graph = listed_graph(model)
    return graph is not None and any(isinstance(x, IntegerLayer) for x in graph.layers)


def integer_file(model: Any, batch_size: int | None = None) -> bytes:
    """Return a LiteRT file of int8 codes in, int8 codes out.

    Its codes, scales and biases are those of the model, so LiteRT's reference kernels
    give the same integers. A softmax, sigmoid or tanh at the end
    is in the file, in the codes that LiteRT has for it.

    Args:
        model: what `Quantize("int8-static")` made.
        batch_size: length of the batch axis, from 1; None leaves it open.

    Raises:
        ConfigError: if `ai-edge-litert` is not installed.
        ModelError: if a layer computes with floats, or in steps too small for LiteRT;
            it is named.
    """
    graph = listed_graph(model)
    ends = {id(tensor) for tensor in graph.outputs}
    nodes, file = nodes_in_order(graph), _File(batch_size, ends)
    for tensor in graph.inputs:
        used = [node for node in nodes if _takes(node, tensor)]
        if len(used) != 1 or not isinstance(used[0].operation, ToCodes):
            raise _computes_with_floats(model, nodes, ends)
        file.add(tensor, tensor.name, used[0].operation.output_codes)
    left = [node for node in nodes if not file.add_call(node)]
    if left:
        raise _computes_with_floats(model, left, ends)
    return file.writer.content(
        {tensor.name: file.known[id(tensor)][0] for tensor in graph.inputs},
        {f"output_{i}": file.known[id(t)][0] for i, t in enumerate(graph.outputs)},
    )


class _File:
    """The tensors of a file by those of a model."""

    def __init__(self, batch_size: int | None, ends: set[int]) -> None:
        self.writer = Writer()
        self.known: dict[int, tuple[int, Codes]] = {}
        self._batch_size = batch_size
        self._ends = ends

    def add(self, tensor: Any, name: str, codes: Codes) -> int:
        """Return the number of a new tensor."""
        shape = (self._batch_size, *tensor.shape[1:])
        number = self.writer.codes(name, shape, codes)
        self.known[id(tensor)] = number, codes
        return number

    def add_call(self, node: Any) -> bool:
        """Add what a call does, and return whether LiteRT has it for codes."""
        layer, tensors = node.operation, node.arguments.keras_tensors
        if not all(id(tensor) in self.known for tensor in tensors):
            return False
        before = [self.known[id(tensor)] for tensor in tensors]
        (output,) = node.outputs
        if isinstance(layer, ToCodes | FromCodes):
            self.known[id(output)] = before[0]
            return isinstance(layer, FromCodes) or layer.output_codes == before[0][1]
        plain = writer_of(layer), before[0][1]
        is_end = id(output) in self._ends
        write, codes = (ending(layer, before[0][1]) if is_end else None) or plain
        unlike = any(codes_of != before[0][1] for _, codes_of in before)
        made = getattr(layer, "output_codes", codes)
        if write is None or made is None:
            return False
        if not isinstance(layer, IntegerLayer) and (unlike or _cannot(layer, tensors)):
            return False
        if isinstance(layer, IntegerLayer):
            check_relu6(layer)
        number = self.add(output, layer.name, made)
        numbers = [number for number, _ in before]
        write(Lowering(self.writer, layer, tensors, numbers, number))
        return True


def _cannot(layer: Any, tensors: Sequence[Any]) -> bool:
    """Return True for a layer of Keras's that LiteRT has, but not for such tensors."""
    found = kind_of(layer) if writer_of(layer) else None
    return found is not None and found.unsupported(layer, tensors) is not None


def _takes(node: Any, tensor: Any) -> bool:
    return any(tensor is taken for taken in node.arguments.keras_tensors)


def _computes_with_floats(
    model: Any, nodes: Sequence[Any], ends: set[int]
) -> ModelError:
    """Return the error that names the layers that no codes go through, and why.

    Args:
        model: the model.
        nodes: its calls, those at least that are not in the file. What only stands
            before or behind a float layer may be among them.
        ends: the ids of the model's outputs.
    """
    reasons = {
        node.operation.name: f"{_named(node.operation)} {reason}"
        for node in nodes
        if (reason := _why_float(node, ends)) is not None
    }
    named = [*reasons.values()] or [
        _named(node.operation)
        for node in nodes
        if not isinstance(node.operation, IntegerLayer)
    ]
    some = ", ".join(named[:5]) + (", ..." if len(named) > 5 else "")
    return ModelError(
        f"The model {model.name!r} does not compute with int8 codes from end to end. "
        f"Expected: no layer that computes with floats. Received: {some}. Next: put "
        "layers in their place that int8-static knows, or export a model without "
        "int8-static, with scheme='int8-dynamic'."
    )


def _named(operation: Any) -> str:
    return f"{operation.name} ({type(operation).__name__})"


def _why_float(node: Any, ends: set[int]) -> str | None:
    """Return why a call has no codes, None if it could have them but for the others."""
    operation = node.operation
    is_end = any(id(output) in ends for output in node.outputs)
    if isinstance(operation, IntegerLayer) or (is_end and ending(operation, _ANY)):
        return None
    if is_trained(node):
        return "is called with training=True"
    given, found = node.arguments, kind_of(operation)
    if found is None:
        return "has no form in int8"
    call = given.args, given.kwargs
    reason = unsupported_call_of(operation, given.keras_tensors, call)
    # A product has codes wherever it stands, unless it was excluded.
    return reason or ("is excluded" if found.starts_int8 else None)
