"""A rematerialization plan, and the part of a model that it is made for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.inside import open_for_good
from kerasmem.graph.layers import has_graph, nodes_in_order, own_graph, sublayers
from kerasmem.graph.segments import graph_of
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.rematerialize.costs import Path, RecordedStep, recorded
from kerasmem.types import Model, Node
from kerasmem.units import format_bytes


def main_part(model: Model, path: Sequence[int]) -> Any:
    """Return what a path leads to, opened where it is a layer; the model for none."""
    for number in path:
        node = nodes_in_order(graph_of(model))[number]
        model = node.operation
        if own_graph(model) is None:
            open_for_good(node)
    return model


def check_graph(model: Model) -> None:
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
    size = format_bytes(piece.kept_bytes)
    fate = f"keeps all, {size}"
    if piece.recomputed:
        fate = f"computes {format_bytes(piece.recomputed_bytes)} again, keeps {size}"
    return f"  {names} ({len(piece.layers)}): {fate}"


def recorded_step(request: Request) -> RecordedStep:
    """Return a step of the model of a request, which has a graph, by its main part."""
    path: Path = ()
    while True:
        graph = graph_of(main_part(request.model, path))
        step = recorded(request, path, graph)
        inner = _main_call(step)
        if inner is None:
            return step
        path = (*path, inner)


def _main_call(step: RecordedStep) -> int | None:
    """Return the call that keeps more than all others together, if it can be cut.

    It is of a nested model, or of a layer of layers, such as an encoder of all blocks.
    """
    total = sum(call.kept_bytes for call in step.calls)
    operations = [node.operation for node in step.nodes]
    pairs = zip(step.nodes, step.calls, strict=True)
    for number, (node, call) in enumerate(pairs):
        once = operations.count(node.operation) == 1
        if once and 2 * call.kept_bytes > total and _can_be_cut(node):
            return number
    return None


def _can_be_cut(node: Node) -> bool:
    layer = node.operation
    if has_graph(layer):
        return True
    if not isinstance(layer, keras.layers.Layer) or not sublayers(layer)[1:]:
        return False
    graph = None if type(layer).__module__.startswith("keras.") else open_for_good(node)
    return graph is not None and len(nodes_in_order(graph)) > 1
