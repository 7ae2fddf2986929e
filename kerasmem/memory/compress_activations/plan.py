"""Chooses the recomputed segments of a graph and how to store their inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from weakref import ref

import keras

from kerasmem.graph.activation_policy import GraphPolicy, SegmentPolicy
from kerasmem.graph.inside import runs_twice
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.layers import nodes_in_order, own_graph
from kerasmem.graph.segments import Segment, graph_of, segments_of
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


Ranges = tuple[tuple[int, int], ...]
"""Ascending ranges of calls of a graph, each with its first call and its end."""


def _within(number: int, ranges: Ranges) -> tuple[int, int] | None:
    return next((r for r in ranges if r[0] <= number < r[1]), None)


@dataclass(frozen=True)
class Selection:
    """Calls whose activations are changed in training.

    Args:
        by_name: Whether an operation outside of `parts` is stored in 8 bits.
        parts: The model, and the nested models or opened layers down to the one that
            `pieces` and `in_8_bits` refer to. Empty to select by name only.
        pieces: Ranges of calls to recompute. Each range is one segment.
        in_8_bits: Ranges of calls to store in 8 bits.
    """

    by_name: Callable[[Operation], bool]
    parts: Sequence[Any] = ()
    pieces: Ranges = ()
    in_8_bits: Ranges = ()

    def pieces_of(self, model: Model) -> Ranges:
        """Return the ranges of calls of a model to recompute."""
        return self.pieces if self._is_part(model) else ()

    def packs(self, model: Model, number: int, operation: Operation) -> bool:
        """Return whether a call of a model is stored in 8 bits."""
        if self._is_part(model):
            return _within(number, self.in_8_bits) is not None
        return self.by_name(operation)

    def _is_part(self, model: Model) -> bool:
        return bool(self.parts) and model is self.parts[-1]


class Way(Enum):
    """How a segment runs in training."""

    PACKED = "inputs are stored in 8 bits, the rest is recomputed"
    RECOMPUTED = "a piece that is recomputed as a whole"
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
    nodes: Sequence[Any],
    outputs: Sequence[Any],
    packs: Sequence[bool],
    pieces: Ranges = (),
) -> list[tuple[Segment, Way]]:
    """Return the segments of a graph in execution order.

    Args:
        nodes: Calls of the graph.
        outputs: Outputs of the graph.
        packs: For each call, whether its activations may be stored in 8 bits.
        pieces: Ranges of calls to recompute.
    """
    groups: list[_Group] = []
    maker: dict[int, _Group] = {}
    for number, (node, role) in enumerate(zip(nodes, roles_of(nodes), strict=True)):
        piece = _within(number, pieces)
        # All inputs of the call exist only in the last group that computes one of them,
        # and in later groups.
        makers = [maker[id(x)] for x in node.input_tensors if id(x) in maker]
        last = max(makers, key=lambda group: group.number, default=None)
        way = _way(node, role, last) if packs[number] else Way.PLAIN
        if piece is not None:
            way, last = Way.RECOMPUTED, groups[-1] if number > piece[0] else None
        elif way is Way.PLAIN:
            last = groups[-1] if groups and groups[-1].way is way else None
        elif last is not None and not _joins(node, role, way, last):
            last = None
        if last is None:
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


def policies(model: Model, selection: Selection, seed: int) -> tuple[GraphPolicy, ...]:
    """Return how a model and its nested models run in training."""
    graphs: dict[int, GraphPolicy] = {}

    def add(model: Model, data: set[int]) -> None:
        graph, pieces = graph_of(model), selection.pieces_of(model)
        nodes = nodes_in_order(graph)
        packs = {
            id(node): selection.packs(model, number, node.operation)
            and runs_twice(node)
            for number, node in enumerate(nodes)
        }
        cuts = choose(nodes, graph.outputs, [*packs.values()], pieces)
        segments = tuple(
            _policy(segment, way, data, seed if packs[id(segment.nodes[0])] else None)
            for segment, way in cuts
        )
        graphs[id(model)] = GraphPolicy(ref(model), segments)
        again = {id(n.operation) for s in segments if s.recomputed for n in s.nodes}
        for node in nodes:
            inner = node.operation
            is_packed = packs[id(node)] and id(inner) not in again
            is_open = is_packed and own_graph(inner) is not None
            if (is_open or inner in selection.parts) and id(inner) not in graphs:
                pairs = zip(graph_of(inner).inputs, node.input_tensors, strict=False)
                add(inner, {id(x) for x, outer in pairs if id(outer) in data})

    add(model, {id(x) for x in graph_of(model).inputs})
    return tuple(graphs.values())


def _policy(
    segment: Segment, way: Way, data: set[int], seed: int | None
) -> SegmentPolicy:
    """Return the policy of a segment. With a seed, its inputs are in 8 bits."""
    # An optional input without a value has no argument number in a step.
    is_unchanged = way is Way.PLAIN or any(_is_optional(x) for x in segment.inputs)
    if seed is None or is_unchanged:
        return SegmentPolicy(segment, recomputed=way is Way.RECOMPUTED)
    numbered_inputs = list(enumerate(segment.inputs))
    if way is Way.EMPTY:
        floats = frozenset(n for n, x in numbered_inputs if "float" in x.dtype)
        return SegmentPolicy(segment, recomputed=True, store=EmptyStore(floats))
    packed_numbers = frozenset(
        n for n, x in numbered_inputs if id(x) not in data and _is_packable(x)
    )
    store = PackedStore(packed_numbers, seed)
    return SegmentPolicy(segment, recomputed=True, store=store)


def _is_packable(x: Tensor) -> bool:
    long_enough = grouping(x.shape).entries >= FEWEST
    return x.dtype in _PACKABLE and not x.sparse and long_enough


def _is_optional(x: Tensor) -> bool:
    # Private: the calls inside of an opened layer are not recorded at its layers.
    maker = x._keras_history.operation
    return isinstance(maker, keras.layers.InputLayer) and maker.optional
