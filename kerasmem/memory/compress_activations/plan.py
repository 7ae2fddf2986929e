"""Chooses the recomputed segments of a graph and how to store their inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import keras

from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.layers import node_of, nodes_in_order, own_graph
from kerasmem.graph.segments import Segment, segments_of
from kerasmem.memory.compress_activations.store import (
    FEWEST,
    EmptyStore,
    PackedStore,
    grouping,
)
from kerasmem.types import Model, Node, Operation, Tensor


class Role(Enum):
    """Role of an operation in the backward pass."""

    LINEAR = "its gradient needs no inputs"
    CHEAP = "its gradient needs its input or output, and recomputing is cheap"
    JOINING = "like CHEAP, but its input must not be rounded"
    KERNEL = "its gradient needs its input, and recomputing is expensive"
    MODEL = "a nested model, whose operations have roles"


def roles_of(nodes: Sequence[Any]) -> list[Role]:
    """Return the role of each call of a graph.

    Linear operations between a kernel and a softmax stay in the segment of the kernel.
    """
    roles: list[Role] = []
    joining: set[int] = set()
    for node in reversed(nodes):
        role = role_of(node.operation)
        if role is Role.LINEAR and any(id(y) in joining for y in node.outputs):
            role = Role.JOINING
        if role is Role.JOINING:
            joining.update(id(x) for x in node.input_tensors)
        roles.append(role)
    return roles[::-1]


def role_of(operation: Operation) -> Role:
    """Return the role of a layer or of a `keras.Operation` such as `a + b`.

    Unknown operations, such as custom layers, count as expensive.
    """
    if isinstance(operation, keras.Model):
        return Role.MODEL
    if getattr(operation, "activity_regularizer", None) is not None:
        return Role.KERNEL
    entry = entry_of(operation)
    if entry.channels == "activation":
        # Scores masked with -1e9 would use the whole 8-bit range.
        own = {"linear": Role.LINEAR, "softmax": Role.JOINING}
        functions = (getattr(keras.activations, name) for name in own)
        role = dict(zip(functions, own.values(), strict=True)).get(operation.activation)
        return role or Role.CHEAP
    return Role[entry.residuals.upper()]


Chosen = Callable[[Any], bool]
"""Function that returns whether an operation may be changed."""


class Way(Enum):
    """How a segment runs in training."""

    PACKED = "inputs are stored in 8 bits, the rest is recomputed"
    EMPTY = "nothing is stored, because the gradient needs no values"
    PLAIN = "unchanged"


@dataclass(eq=False)
class _Group:
    number: int
    way: Way
    nodes: list[Any] = field(default_factory=list[Any])
    dear: set[int] = field(default_factory=set[int])
    """Tensors of this group that depend on a kernel in this group."""


def choose(
    nodes: Sequence[Any], outputs: Sequence[Any], chosen: Chosen
) -> list[tuple[Segment, Way]]:
    """Return the segments of a graph in execution order."""
    groups: list[_Group] = []
    maker: dict[int, _Group] = {}
    for node, role in zip(nodes, roles_of(nodes), strict=True):
        # All inputs of the call exist only in the last group that computes one of them,
        # and in later groups.
        makers = [maker[id(x)] for x in node.input_tensors if id(x) in maker]
        last = max(makers, key=lambda group: group.number, default=None)
        way = _way(node, role, last) if chosen(node.operation) else Way.PLAIN
        if last is None or not _joins(node, role, way, last):
            last = _Group(len(groups), way)
            groups.append(last)
        last.nodes.append(node)
        if role is Role.KERNEL or _after_kernel(node, last):
            last.dear.update(id(y) for y in node.outputs)
        maker.update((id(y), last) for y in node.outputs)
    segments = segments_of([group.nodes for group in groups], outputs)
    ways = (group.way for group in groups)
    return list(zip(segments, ways, strict=True))


def _way(node: Node, role: Role, last: _Group | None) -> Way:
    if role is Role.MODEL:
        return Way.PLAIN
    behind = last is not None and (
        last.way is not Way.PACKED or _after_kernel(node, last)
    )
    return Way.EMPTY if behind and role is Role.LINEAR else Way.PACKED


def _joins(node: Node, role: Role, way: Way, last: _Group) -> bool:
    if way is not last.way:
        return False
    return (
        way is not Way.PACKED or role is Role.JOINING or not _after_kernel(node, last)
    )


def _after_kernel(node: Node, group: _Group) -> bool:
    return any(id(x) in group.dear for x in node.input_tensors)


_PACKABLE = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, eq=False)
class StoredSegment:
    """A segment and the store of its inputs in training.

    `store` is None for an unchanged segment.
    """

    segment: Segment
    store: PackedStore | EmptyStore | None


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """Segments of one model with a graph."""

    model: Any
    steps: tuple[StoredSegment, ...]


def plan(model: Model, chosen: Chosen, seed: int) -> list[GraphPlan]:
    """Return the plans of a model and its nested models."""
    plans: dict[int, GraphPlan] = {}

    def add(model: Model, data: set[int]) -> None:
        graph = own_graph(model)
        cuts = choose(nodes_in_order(graph), graph.outputs, chosen)
        steps = tuple(_step(segment, way, seed, data) for segment, way in cuts)
        plans[id(model)] = GraphPlan(model, steps)
        for node in (node for step in steps for node in step.segment.nodes):
            inner = own_graph(node.operation) if chosen(node.operation) else None
            if inner is not None and id(node.operation) not in plans:
                pairs = zip(inner.inputs, node.input_tensors, strict=True)
                add(node.operation, {id(x) for x, outer in pairs if id(outer) in data})

    add(model, {id(x) for x in own_graph(model).inputs})
    return list(plans.values())


def _step(segment: Segment, way: Way, seed: int, data: set[int]) -> StoredSegment:
    # An optional input without a value has no argument number in a step.
    if way is Way.PLAIN or any(_is_optional(x) for x in segment.inputs):
        return StoredSegment(segment, None)
    numbered_inputs = list(enumerate(segment.inputs))
    if way is Way.EMPTY:
        floats = frozenset(n for n, x in numbered_inputs if "float" in x.dtype)
        return StoredSegment(segment, EmptyStore(floats))
    packed_numbers = frozenset(
        n for n, x in numbered_inputs if id(x) not in data and _is_packable(x)
    )
    return StoredSegment(segment, PackedStore(packed_numbers, seed))


def _is_packable(x: Tensor) -> bool:
    long_enough = grouping(x.shape).entries >= FEWEST
    return x.dtype in _PACKABLE and not x.sparse and long_enough


def _is_optional(x: Tensor) -> bool:
    maker = node_of(x).operation
    return isinstance(maker, keras.layers.InputLayer) and maker.optional
