"""Where a graph is cut, so that little is stored and little is computed again.

What goes into a segment is stored; all else in it is computed again when its gradient
is taken. A segment is a run of cheap operations with the kernels that they lead to:
convolution | batch normalization, ReLU, convolution | ... Of each convolution only the
output is stored then, and the ReLU's, which the next convolution needs, is made of it.
A framework that computes only what it must multiplies by no kernel again for that,
unless a layer has an activation behind its kernel. Linear operations after a kernel are
a segment of their own, of which nothing is stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kerasmem.graph.pure import Segment
from kerasmem.memory.compress_activations.roles import Role, roles_of

Chosen = Callable[[Any], bool]


class Way(Enum):
    """How a segment is run in training."""

    PACKED = "its inputs are stored in eight bits, the rest is computed again"
    EMPTY = "nothing is stored, because the gradient needs no values"
    PLAIN = "as ever"


@dataclass(eq=False)
class _Group:
    number: int
    way: Way
    nodes: list[Any] = field(default_factory=list[Any])
    dear: set[int] = field(default_factory=set[int])
    """Tensors of this group that hang on a kernel of this group."""


def choose(
    nodes: Sequence[Any], outputs: Sequence[Any], chosen: Chosen
) -> list[tuple[Segment, Way]]:
    """Return the segments of a graph, in an order in which they can be run.

    Args:
        nodes: the calls of the graph in an order in which they can be run.
        outputs: the tensors that the graph returns.
        chosen: says of an operation whether it may be run in another way.
    """
    groups: list[_Group] = []
    maker: dict[int, _Group] = {}
    for node, role in zip(nodes, roles_of(nodes), strict=True):
        # Only in the last group that an input comes from, and in later ones, are all
        # of them there before the call.
        made = [maker[id(x)] for x in node.input_tensors if id(x) in maker]
        last = max(made, key=lambda group: group.number, default=None)
        way = _way(node, role, last) if chosen(node.operation) else Way.PLAIN
        if last is None or not _joins(node, role, way, last):
            last = _Group(len(groups), way)
            groups.append(last)
        last.nodes.append(node)
        if role is Role.KERNEL or _after_kernel(node, last):
            last.dear.update(id(y) for y in node.outputs)
        maker.update((id(y), last) for y in node.outputs)
    return [(_segment(group, nodes, outputs), group.way) for group in groups]


def _way(node: Any, role: Role, last: _Group | None) -> Way:
    if role is Role.MODEL:
        return Way.PLAIN
    behind = last is not None and (
        last.way is not Way.PACKED or _after_kernel(node, last)
    )
    return Way.EMPTY if behind and role is Role.LINEAR else Way.PACKED


def _joins(node: Any, role: Role, way: Way, last: _Group) -> bool:
    if way is not last.way:
        return False
    return (
        way is not Way.PACKED or role is Role.JOINING or not _after_kernel(node, last)
    )


def _after_kernel(node: Any, group: _Group) -> bool:
    return any(id(x) in group.dear for x in node.input_tensors)


def _segment(group: _Group, nodes: Sequence[Any], outputs: Sequence[Any]) -> Segment:
    inside = {id(node) for node in group.nodes}
    made = {id(y): y for node in group.nodes for y in node.outputs}
    taken = {id(x): x for node in group.nodes for x in node.input_tensors}
    used = {id(y) for y in outputs}
    for node in nodes:
        if id(node) not in inside:
            used.update(id(x) for x in node.input_tensors)
    return Segment(
        nodes=tuple(group.nodes),
        inputs=tuple(x for key, x in taken.items() if key not in made),
        outputs=tuple(y for key, y in made.items() if key in used),
    )
