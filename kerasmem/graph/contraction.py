"""The axes of one tensor that products sum over, read from a graph of operations."""

from typing import Any

import keras

from kerasmem.graph.channels.kind import kind

_Origin = tuple[int | None, ...]
"""For each axis of a tensor the axis of the first one that it was, None for another."""

_MOVES = {
    *("ops.Cast", "ops.ExpandDims", "ops.GetItem", "ops.Moveaxis", "ops.Split"),
    *("ops.Squeeze", "ops.Swapaxes", "ops.Take", "ops.Transpose", "ops.Unstack"),
}


def summed_in(outputs: Any, tensor: Any) -> set[tuple[int, ...]]:
    """Return what every product that takes a tensor sums over of it.

    A tensor may be cast, indexed or transposed on its way to a product.

    Args:
        outputs: the `KerasTensor`s to walk back from.
        tensor: the `KerasTensor` to look for.

    Returns:
        Axes, ascending, of each product that sums over some of them but not all.
    """
    origins: dict[int, _Origin] = {id(tensor): tuple(range(len(tensor.shape)))}
    found: set[tuple[int, ...]] = set()
    for node in _nodes(outputs):
        given = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        for place, x in enumerate(given):
            origin = origins.get(id(x))
            if origin is None:
                continue
            summed = {origin[axis] for axis in _summed(node, place, given)} - {None}
            if summed and set(origin) - summed - {None}:
                found.add(tuple(sorted(axis for axis in summed if axis is not None)))
            if kind(node.operation) in _MOVES:
                origins.update(_moved(node, x, origin))
    return found


def _nodes(outputs: Any) -> list[Any]:
    """Return the calls that made some tensors, each after those that it needs."""
    found: dict[int, Any] = {}
    waiting = [(x, False) for x in keras.tree.flatten(outputs)]
    while waiting:
        x, is_ready = waiting.pop()
        # Keras has no public way from a symbol back to what made it.
        history = getattr(x, "_keras_history", None)
        if history is None or history.operation is None:
            continue
        node = history.operation._inbound_nodes[history.node_index]
        if is_ready:
            found.setdefault(id(node), node)
        elif id(node) not in found:
            waiting.append((x, True))
            waiting += [(y, False) for y in node.input_tensors]
    return list(found.values())


def _summed(node: Any, place: int, given: list[Any]) -> list[int]:
    """Return the axes of an argument that a call sums over times another's."""
    which = kind(node.operation)
    if which in ("ops.Matmul", "ops.Dot"):
        return [-2 if place == 1 and len(given[place].shape) > 1 else -1]
    if which != "ops.Einsum" or "->" not in node.operation.subscripts:
        return []
    inputs, output = node.operation.subscripts.replace(" ", "").split("->")
    operands = inputs.split(",")
    own = operands[place]
    others = "".join(operands[:place] + operands[place + 1 :])
    if "." in own:
        return []
    return [
        axis
        for axis, letter in enumerate(own)
        if letter in others and letter not in output
    ]


def _moved(node: Any, x: Any, origin: _Origin) -> dict[int, _Origin]:
    """Return the origins of what a call made of an argument by moving it.

    An axis is where its length shows: twice as long as an argument, twice as long in
    what the call makes.
    """
    axes: list[list[int | None]] = [[None] * len(y.shape) for y in node.outputs]
    for axis, size in enumerate(x.shape):
        longer = (*x.shape[:axis], 2 * size, *x.shape[axis + 1 :])
        other = keras.KerasTensor(longer, x.dtype)
        args, kwargs = node.arguments.convert(lambda y: other if y is x else y)  # noqa: B023
        made = keras.tree.flatten(node.operation.compute_output_spec(*args, **kwargs))
        # Of what is unstacked there are more then.
        for y, new, found in zip(node.outputs, made, axes, strict=False):
            for place, length in enumerate(new.shape):
                if length != y.shape[place]:
                    found[place] = origin[axis]
    return {id(y): tuple(each) for y, each in zip(node.outputs, axes, strict=True)}
