"""Which tensors of a model are stored, and how."""

from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.graph.nodes import nodes_in_order, own_graph
from kerasmem.graph.pure import Segment
from kerasmem.memory.compress_activations.choose import Chosen, Way, choose
from kerasmem.memory.compress_activations.math import FEWEST, grouping
from kerasmem.memory.compress_activations.store import EmptyStore, PackedStore

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
