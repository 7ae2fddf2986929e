"""All that is known of a model before its plan is chosen, and the plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.inside import open_for_good
from kerasmem.graph.layers import has_graph, nodes_in_order, own_graph, sublayers
from kerasmem.graph.segments import graph_of
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.rematerialize.costs import CallCosts, RecordedStep, costs, recorded
from kerasmem.units import format_bytes

Path = tuple[int, ...]
"""Numbers of the calls, outermost first, that lead to a nested model or a layer."""


def main_part(model: Any, path: Sequence[int]) -> Any:
    """Return what a path leads to, opened where it is a layer; the model for none."""
    for number in path:
        node = nodes_in_order(graph_of(model))[number]
        model = node.operation
        if own_graph(model) is None:
            open_for_good(node)
    return model


def check_graph(model: Any) -> None:
    """Raise unless the model has a graph.

    Raises:
        ModelError: if it has none; the text names the parts of it that have one.
    """
    if own_graph(model) is not None:
        return
    inner = [x.name for x in sublayers(model) if x is not model and has_graph(x)]
    if inner:
        next_step = (
            f"its parts {inner} have one: rematerialize these and set the results in "
            "their places before the first call"
        )
    else:
        next_step = "make it of keras.Input and calls of its layers"
    raise ModelError(
        "What is computed again is cut out of a model's graph. Expected: a Sequential "
        f"or Functional model. Received: model={model.name!r}, of class "
        f"{type(model).__name__}, which has none. Next: {next_step}."
    )


@dataclass(frozen=True)
class Piece:
    """Layers that follow each other, and what becomes of their activations.

    Args:
        layers: names of the layers and operations, in the order in which they run.
        recomputed: whether only what enters is kept, and the rest computed again.
        kept_bytes: bytes that wait for the backward pass in any case.
        recomputed_bytes: bytes that are there only while these layers' gradients are
            computed; 0 if nothing is computed again.
    """

    layers: tuple[str, ...]
    recomputed: bool
    kept_bytes: int
    recomputed_bytes: int


@dataclass(frozen=True)
class Rematerialization:
    """A plan, with estimated costs.

    Args:
        pieces: the model, or the nested model that holds most of its activations, cut
            in order.
        model_name: name of the model that is cut.
        batch_size: samples in the batch that the bytes are for.
        peak_bytes: estimated peak of a training step.
        plain_peak_bytes: the same without the plan.
        extra_time: estimated time of what is computed again, as a share of the plain
            step's.
    """

    pieces: tuple[Piece, ...]
    model_name: str
    batch_size: int
    peak_bytes: int
    plain_peak_bytes: int
    extra_time: float

    @property
    def saved_bytes(self) -> int:
        """By how much the peak is estimated to be lower."""
        return self.plain_peak_bytes - self.peak_bytes

    def __str__(self) -> str:
        """Return the plan as text, a line per piece."""
        share = self.saved_bytes / max(1, self.plain_peak_bytes)
        lines = [
            f"{self.model_name!r} in {len(self.pieces)} pieces, at batch size "
            f"{self.batch_size}: a peak of {format_bytes(self.peak_bytes)} instead of "
            f"{format_bytes(self.plain_peak_bytes)} ({share:.0%} less), a step "
            f"{self.extra_time:.0%} longer (all estimated)."
        ]
        return "\n".join([*lines, *map(_line, self.pieces)])


def _line(piece: Piece) -> str:
    first, last = piece.layers[0], piece.layers[-1]
    names = first if first == last else f"{first} ... {last}"
    kept = format_bytes(piece.kept_bytes)
    fate = f"keeps all, {kept}"
    if piece.recomputed:
        fate = f"computes {format_bytes(piece.recomputed_bytes)} again, keeps {kept}"
    return f"  {names} ({len(piece.layers)}): {fate}"


@dataclass(frozen=True)
class Setting:
    """A model, its part to cut, and the estimated costs of the part's calls.

    Args:
        model: the model.
        batch_size: samples in the batch.
        path: where the part is.
        step: one step of the model.
        calls: costs of each of the part's calls.
        fixed: numbers of the calls that are not computed again.
        names: what each call is of.
    """

    model: Any
    batch_size: int
    path: Path
    step: RecordedStep
    calls: Sequence[CallCosts]
    fixed: frozenset[int]
    names: Sequence[str]

    @property
    def part(self) -> Any:
        """The model or nested model that is cut."""
        return main_part(self.model, self.path)


def setting_of(request: Request) -> Setting:
    """Return what is known of the model of a request, which has a graph."""
    model = request.model
    path: Path = ()
    while True:
        graph = graph_of(main_part(model, path))
        step = recorded(request, graph)
        calls = costs(step)
        inner = _main_call(graph, calls)
        if inner is None:
            break
        path = (*path, inner)
    nodes = nodes_in_order(graph)
    return Setting(
        model=model,
        batch_size=request.batch_size,
        path=path,
        step=step,
        calls=calls,
        fixed=frozenset(n for n, node in enumerate(nodes) if _is_fixed(node)),
        names=[node.operation.name for node in nodes],
    )


def _main_call(graph: Any, calls: Sequence[CallCosts]) -> int | None:
    """Return the call that keeps more than all others together, if it can be cut.

    It is of a nested model, or of a layer of layers, such as an encoder of all blocks.
    """
    total = sum(call.kept_bytes for call in calls)
    nodes = nodes_in_order(graph)
    operations = [node.operation for node in nodes]
    for number, (node, call) in enumerate(zip(nodes, calls, strict=True)):
        once = operations.count(node.operation) == 1
        if once and 2 * call.kept_bytes > total and _can_be_cut(node):
            return number
    return None


def _can_be_cut(node: Any) -> bool:
    layer = node.operation
    if has_graph(layer):
        return True
    if not isinstance(layer, keras.layers.Layer) or not sublayers(layer)[1:]:
        return False
    graph = None if type(layer).__module__.startswith("keras.") else open_for_good(node)
    return graph is not None and len(nodes_in_order(graph)) > 1


def _is_fixed(node: Any) -> bool:
    """Return whether a call keeps next to nothing, or takes what is no plain tensor.

    The gradient of a table of embeddings reads the indices only, and names the rows
    that it is for; as a function of tensors it would be as large as the table.
    """
    table = isinstance(node.operation, keras.layers.Embedding)
    return table or any(x.sparse for x in node.input_tensors)
