"""A student made from its teacher: the same network, narrower or with fewer blocks.

Residual blocks, encoder blocks, hidden layers of equal width repeat each other, so that
some of them can be left out: all that the graph computes flows through one tensor
before such a part and through one behind it, and both are of one shape. A model that
its own class builds, such as one of KerasHub, has an argument that counts its blocks.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.checks import Real
from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.arguments import (
    Pair,
    arguments,
    is_made_of_arguments,
    made_with,
)
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.layers import last_uses, listed_graph, nodes_in_order
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model, Node


def make_student(
    teacher: Model,
    ratio: float | None = None,
    *,
    of: str = "parameters",
    depth: float | None = None,
) -> Any:
    """Make a student: a smaller copy of `teacher` with the weights that it keeps.

    Narrower: every layer loses the channels with the smallest weights. Less deep: of
    blocks that repeat each other, such as residual blocks or layers of an
    encoder, a share stays, evenly spread. Compile settings are the teacher's; the
    optimizer starts anew.

    Args:
        teacher: a built model with a graph, which is not changed.
        ratio: fraction of the width to keep, in (0, 1]; None or 1 keeps all of it, and
            then `depth` is required.
        of: what `ratio` is a share of: `"parameters"`, `"multiplications"` or
            `"channels"`.
        depth: share that it keeps of the blocks of every stage that can be left out,
            in [0, 1); None for all. Blocks that change a shape always stay. Of a model
            of KerasHub it is a share of `num_layers`, at least one.

    Returns:
        The student, compiled as the teacher is, with an optimizer that starts anew.

    Raises:
        ConfigError: if a value is out of its range, or neither share is given.
        ModelError: if the teacher has no channels, or no blocks, that could be left
            out.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(16), keras.layers.Dense(2)]
        >>> teacher = keras.Sequential([keras.Input((4,)), *layers])
        >>> make_student(teacher, 0.5, of="channels").layers[0].units
        8
    """
    if ratio is None and depth is None:
        raise ConfigError(
            "The student is narrower or less deep than its teacher. Received: "
            "ratio=None, depth=None."
        )
    if ratio is not None:
        interval = Real(above=0, below=1) if depth is None else Real(above=0, most=1)
        interval.check("make_student", "ratio", ratio)
    student = teacher
    if depth is not None:
        Real(least=0, below=1).check("make_student", "depth", depth)
        student = _less_deep(student, depth)
    if ratio is not None and ratio < 1:
        student, _ = apply_technique(PruneChannels(1 - ratio, of=of), student)
    student = clone(student) if student is teacher else student
    compile_as(student, teacher)
    return student


def _less_deep(teacher: Model, depth: float) -> Any:
    if is_made_of_arguments(teacher):
        return _with_fewer_layers(teacher, depth)
    stages = repeated(teacher) if listed_graph(teacher) is not None else []
    left_out = [part for parts in stages for part in _spread(parts, depth)]
    if not left_out:
        count = sum(map(len, stages))
        raise ModelError(
            f"The model {teacher.name!r} has {count} parts that repeat each other and "
            f"could be left out, so none of them goes. Received: depth={depth!r}."
        )
    return without(teacher, left_out)


def _with_fewer_layers(teacher: Model, depth: float) -> Any:
    """Return `teacher` with fewer blocks by its config, and the weights of these.

    Blocks that stay are evenly spread, among those that do what is done in their new
    place: a block of a sliding window stands for one.
    """
    counts = {
        place: value
        for place, value in arguments(teacher).items()
        if _LAYERS.fullmatch(place[-1]) and type(value) is int and value > 1
    }
    changes = {place: max(round(depth * n), 1) for place, n in counts.items()}
    if changes == counts:
        raise ModelError(
            f"The config of the model {teacher.name!r} counts no layers of which one "
            f"could be left out. Expected: an argument such as num_layers, of at least "
            f"2, of which a share of {depth!r} is less. Received: "
            f"{ {place[-1]: n for place, n in counts.items()} }."
        )

    def values(pairs: Sequence[Pair]) -> Iterator[tuple[Any, Any]]:
        return ((new, to_numpy(old)) for old, new in pairs)

    student, _ = made_with(teacher, changes, values)
    return student


_LAYERS = re.compile(r"([a-z]+_)?num_(encoder_|decoder_|hidden_)?layers")


def _spread(parts: list[Any], depth: float) -> list[Any]:
    stay = round(depth * len(parts))
    places = {(2 * place + 1) * len(parts) // (2 * stay) for place in range(stay)}
    return [part for place, part in enumerate(parts) if place not in places]


Nodes = tuple[Any, ...]

_LENGTH = 128  # of axes that are open; a layer that strides makes less of it


@dataclass(frozen=True)
class _Step:
    """Calls between two tensors through which everything flows."""

    nodes: Nodes
    shape: tuple[Any, ...]  # of the tensor behind, with its dtype

    @property
    def looks(self) -> tuple[Any, ...]:
        """What is equal in steps that are built alike."""
        return tuple(
            (type(node.operation), *(tuple(y.shape) for y in node.outputs))
            for node in self.nodes
        )


def repeated(model: Model) -> list[list[Nodes]]:
    """Return the calls of parts that could be left out, a list for each stage.

    The parts of one stage follow each other and are built alike; any of them can go.

    Args:
        model: a Sequential or Functional model. Models nested in it are one call.
    """
    stages = map(_parts, _stages(listed_graph(model)))
    return [parts for parts in stages if parts]


def without(model: Model, parts: Sequence[Nodes]) -> Any:
    """Return a copy of `model` without some parts, with the weights of all others.

    It is not compiled.

    Raises:
        ModelError: if a layer cannot be made from its config.
    """
    return Rebuild(_Shorter({id(node) for part in parts for node in part})).run(model)


class _Shorter(Rewrite):
    """Leaves calls out: what flows into a part comes out of each of its calls."""

    def __init__(self, left_out: set[int]) -> None:
        self._left_out = left_out

    def goes(self, node: Node) -> bool:
        return id(node) in self._left_out


def _stages(graph: Any) -> list[list[_Step]]:
    stages: list[list[_Step]] = []
    shape = None
    ends = {id(x) for x in graph.outputs}
    for step in _steps(graph):
        if step.shape != shape or not all(_can_go(n, ends) for n in step.nodes):
            stages.append([])
        stages[-1].append(step)
        shape = step.shape
    return stages


def _steps(graph: Any) -> list[_Step]:
    nodes = nodes_in_order(graph)
    last_use = last_uses(nodes, graph.outputs)
    waiting = {id(x) for x in graph.inputs}
    shapes = _shapes(graph)
    steps, start = [], 0
    for number, node in enumerate(nodes):
        waiting |= {id(y) for y in node.outputs}
        waiting -= {key for key in waiting if last_use.get(key, -1) <= number}
        (behind, *others) = node.outputs
        if waiting == {id(behind)} and not others:
            shape = (shapes[id(behind)], behind.dtype)
            steps.append(_Step(tuple(nodes[start : number + 1]), shape))
            start = number + 1
    return steps


def _can_go(node: Node, ends: set[int]) -> bool:
    return len(node.outputs) == 1 and id(node.outputs[0]) not in ends


def _shapes(graph: Any) -> dict[int, tuple[int, ...]]:
    tensors = {
        id(x): keras.KerasTensor([n or _LENGTH for n in x.shape], dtype=x.dtype)
        for x in graph.inputs
    }
    for node in nodes_in_order(graph):
        args, kwargs = node.arguments.fill_in(tensors)
        specs = keras.tree.flatten(node.operation.compute_output_spec(*args, **kwargs))
        tensors.update(zip(map(id, node.outputs), specs, strict=True))
    return {key: tuple(tensor.shape) for key, tensor in tensors.items()}


def _parts(stage: list[_Step]) -> list[Nodes]:
    looks = [step.looks for step in stage]
    begin, end, period = max(
        (run for p in range(1, len(stage)) for run in _repetitions(looks, p)),
        key=lambda run: (run[1] - run[0], -run[2]),
        default=(0, 0, 1),
    )
    starts = range(begin, end - period + 1, period)
    parts = [stage[start : start + period] for start in starts if start > 0]
    calls = [tuple(itertools.chain(*(s.nodes for s in part))) for part in parts]
    return [part for part in calls if any(map(_has_kernel, part))]


def _repetitions(looks: list[Any], period: int) -> Iterator[tuple[int, int, int]]:
    alike = [a == b for a, b in zip(looks, looks[period:], strict=False)]
    place = 0
    for same, run in itertools.groupby(alike):
        length = len(list(run))
        if same:
            yield place, place + length + period, period
        place += length


def _has_kernel(node: Node) -> bool:
    weights = getattr(node.operation, "weights", ())
    return any(len(variable.shape) > 1 for variable in weights)
