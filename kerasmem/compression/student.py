"""Creates a student from its teacher by reducing width or depth.

Residual blocks, encoder blocks and hidden layers of equal width repeat, so some can be
removed. Such a block has one input tensor and one output tensor of the same shape, and
no other connections. Models built from arguments, such as KerasHub models, have an
argument for the number of blocks.
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
    """Creates a student: a smaller copy of `teacher` that inherits its weights.

    `ratio` reduces the width: each layer loses the channels with the smallest weights.
    `depth` reduces the number of repeated blocks, such as residual blocks or encoder
    layers. The kept blocks are evenly spaced.

    Args:
        teacher: A built model with a graph. It is not changed.
        ratio: Float in (0, 1]. Fraction of the width to keep. `None` or 1 keeps the
            full width, and `depth` is then required.
        of: Quantity that `ratio` refers to: `"parameters"`, `"multiplications"` or
            `"channels"`. Defaults to `"parameters"`.
        depth: Float in [0, 1). Fraction of removable blocks to keep in each stage.
            Blocks that change the shape are always kept. For KerasHub models, the
            fraction of `num_layers`, at least one. Defaults to `None` for all blocks.

    Returns:
        The student, compiled like the teacher with a new optimizer.

    Raises:
        ConfigError: If a value is out of range, or both fractions are missing.
        ModelError: If the teacher has no channels or blocks that can be removed.

    Example:
        >>> import keras
        >>> layers = [keras.layers.Dense(16), keras.layers.Dense(2)]
        >>> teacher = keras.Sequential([keras.Input((4,)), *layers])
        >>> make_student(teacher, 0.5, of="channels").layers[0].units
        8
    """
    if ratio is None and depth is None:
        raise ConfigError(
            "Expected ratio or depth, to make the student smaller than its teacher. "
            "Received: ratio=None, depth=None."
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
            f"Cannot remove a block of the model {teacher.name!r}: it has {count} "
            f"removable repeated blocks. Received: depth={depth!r}."
        )
    return without(teacher, left_out)


def _with_fewer_layers(teacher: Model, depth: float) -> Any:
    """Returns `teacher` with fewer blocks in its config, and their weights.

    The kept blocks are evenly spaced. A block only moves to the position of a block of
    the same kind, such as sliding-window attention.
    """
    counts = {
        place: value
        for place, value in arguments(teacher).items()
        if _LAYERS.fullmatch(place[-1]) and type(value) is int and value > 1
    }
    changes = {place: max(round(depth * n), 1) for place, n in counts.items()}
    if changes == counts:
        raise ModelError(
            f"The config of the model {teacher.name!r} has no layer count to reduce. "
            "Expected: an argument such as num_layers, at least 2, that decreases "
            f"with depth={depth!r}. Received: "
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

_LENGTH = 128  # for dynamic axes; strided layers shorten them


@dataclass(frozen=True)
class _Step:
    """Consecutive calls with one input tensor and one output tensor."""

    nodes: Nodes
    shape: tuple[Any, ...]  # output shape and dtype

    @property
    def looks(self) -> tuple[Any, ...]:
        """Signature of the calls, equal for repeated blocks."""
        return tuple(
            (type(node.operation), *(tuple(y.shape) for y in node.outputs))
            for node in self.nodes
        )


def repeated(model: Model) -> list[list[Nodes]]:
    """Returns the removable blocks of a model as lists of calls, one list per stage.

    The blocks of a stage are consecutive and identical; each of them can be removed.
    A nested model is one call.
    """
    stages = map(_parts, _stages(listed_graph(model)))
    return [parts for parts in stages if parts]


def without(model: Model, parts: Sequence[Nodes]) -> Any:
    """Returns an uncompiled copy of `model` without the calls in `parts`."""
    return Rebuild(_Shorter({id(node) for part in parts for node in part})).run(model)


class _Shorter(Rewrite):
    """Replaces each removed call by its input."""

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
