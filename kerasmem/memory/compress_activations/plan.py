"""What is compressed: the settings, what each layer keeps, the plan."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import keras

from kerasmem.errors import ConfigError
from kerasmem.graph.layers import nodes_in_order, own_graph
from kerasmem.graph.segments import Segment
from kerasmem.memory.compress_activations.math import FEWEST, grouping
from kerasmem.memory.compress_activations.roles import Role, roles_of
from kerasmem.memory.compress_activations.store import EmptyStore, PackedStore


@dataclass(frozen=True)
class Settings:
    """What a user chose.

    Args:
        include: names of layers, or regular expressions for whole names; None for all.
        exclude: likewise, layers that are left alone.
        seed: of the rounding, from 0.
    """

    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    seed: int

    def __post_init__(self) -> None:
        if (
            isinstance(self.seed, bool)
            or not isinstance(self.seed, int)
            or self.seed < 0
        ):
            raise ConfigError(
                f"`seed` is a whole number from 0. Received: seed={self.seed!r}."
            )
        for pattern in (*(self.include or ()), *self.exclude):
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ConfigError(
                    "`include` and `exclude` take names of layers or regular "
                    f"expressions for whole names. Received: {pattern!r} ({error})."
                ) from error

    def chosen(self, operation: Any) -> bool:
        """Return whether the layer or operation is compressed."""
        name = operation.name
        wanted = self.include is None or _matches(name, self.include)
        return wanted and not _matches(name, self.exclude)

    def check(self, model: Any) -> None:
        """Raise a ConfigError if a name or pattern matches nothing in `model`."""
        names = _names(model)
        for pattern in (*(self.include or ()), *self.exclude):
            if not any(_matches(name, (pattern,)) for name in names):
                raise ConfigError(
                    "`include` and `exclude` name layers of the model. Received: "
                    f"{pattern!r}, which matches none of {sorted(names)[:10]}."
                )


def _names(model: Any) -> set[str]:
    names: set[str] = set()
    for node in nodes_in_order(own_graph(model)):
        names.add(node.operation.name)
        if own_graph(node.operation) is not None:
            names |= _names(node.operation)
    return names


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


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


_PACKABLE = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, eq=False)
class Step:
    """A segment of a graph and how its inputs are stored in training.

    Args:
        segment: the calls.
        store: how the inputs are stored; None if it is run as ever.
    """

    segment: Segment
    store: PackedStore | EmptyStore | None


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """The segments of one model with a graph.

    Args:
        model: the model, which may be inside of another.
        steps: its segments, in order.
    """

    model: Any
    steps: tuple[Step, ...]


def plan(model: Any, chosen: Chosen, seed: int) -> list[GraphPlan]:
    """Return the plans of a model and of the models inside of it.

    Args:
        model: a model with a graph.
        chosen: says of an operation whether it may be run in another way.
        seed: of the rounding.
    """
    plans: dict[int, GraphPlan] = {}
    data = {id(x) for x in own_graph(model).inputs}
    _add(_Planner(chosen, seed), model, data, plans)
    return list(plans.values())


@dataclass(frozen=True)
class _Planner:
    chosen: Chosen
    seed: int

    def step(self, segment: Segment, way: Way, data: set[int]) -> Step:
        numbered = list(enumerate(segment.inputs))
        # An input without a value has no number among the arguments of a step.
        if way is Way.PLAIN or any(_is_optional(x) for x in segment.inputs):
            return Step(segment, None)
        if way is Way.EMPTY:
            floats = frozenset(n for n, x in numbered if "float" in x.dtype)
            return Step(segment, EmptyStore(floats))
        packed = frozenset(
            n for n, x in numbered if id(x) not in data and _is_packable(x)
        )
        return Step(segment, PackedStore(packed, self.seed))


def _add(
    planner: _Planner, model: Any, data: set[int], plans: dict[int, GraphPlan]
) -> None:
    graph = own_graph(model)
    cuts = choose(nodes_in_order(graph), graph.outputs, planner.chosen)
    steps = tuple(planner.step(segment, way, data) for segment, way in cuts)
    plans[id(model)] = GraphPlan(model, steps)
    for node in (node for step in steps for node in step.segment.nodes):
        inner = own_graph(node.operation) if planner.chosen(node.operation) else None
        if inner is not None and id(node.operation) not in plans:
            pairs = zip(inner.inputs, node.input_tensors, strict=True)
            known = {id(x) for x, outer in pairs if id(outer) in data}
            _add(planner, node.operation, known, plans)


def _is_packable(x: Any) -> bool:
    long_enough = grouping(x.shape).entries >= FEWEST
    return x.dtype in _PACKABLE and not x.sparse and long_enough


def _is_optional(x: Any) -> bool:
    # Private: nothing public leads from a tensor to the layer that made it.
    maker = x._keras_history.operation
    return isinstance(maker, keras.layers.InputLayer) and maker.optional
