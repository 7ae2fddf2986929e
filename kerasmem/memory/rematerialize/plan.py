"""Rematerialization plan, and the part of the model to cut."""

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
    """Return the nested model or opened layer at a path."""
    for number in path:
        node = nodes_in_order(graph_of(model))[number]
        model = node.operation
        if own_graph(model) is None:
            open_for_good(node)
    return model


def check_graph(model: Model) -> None:
    """Raise `ModelError` unless the model has a graph."""
    if own_graph(model) is not None:
        return
    inner = [x.name for x in sublayers(model) if x is not model and has_graph(x)]
    if inner:
        next_step = (
            f"rematerialize its parts {inner}, which have a graph, and replace them "
            "with the results before the first call"
        )
    else:
        next_step = "build it from keras.Input and calls of its layers"
    raise ModelError(
        "Rematerialization needs the graph of the model. Expected: a Sequential "
        f"or Functional model. Received: model={model.name!r}, of class "
        f"{type(model).__name__}, without a graph. Next: {next_step}."
    )


@dataclass(frozen=True)
class Piece:
    """Consecutive layers and the handling of their activations.

    Args:
        layers: Names of layers and operations in execution order.
        recomputed: Whether only the inputs are saved and the rest is recomputed.
        kept_bytes: Bytes saved for the backward pass.
        recomputed_bytes: Bytes allocated only while the gradients of these layers are
            computed. 0 if nothing is recomputed.
    """

    layers: tuple[str, ...]
    recomputed: bool
    kept_bytes: int
    recomputed_bytes: int


@dataclass(frozen=True)
class Rematerialization:
    """Rematerialization plan with estimated costs.

    Args:
        pieces: Pieces of the model, or of the nested model with most of the
            activations, in order.
        model_name: Name of the cut model.
        batch_size: Batch size of the estimates.
        peak_bytes: Estimated peak of a training step in bytes.
        plain_peak_bytes: Estimated peak without the plan in bytes.
        extra_time: Estimated time of the recomputation relative to the plain step.
    """

    pieces: tuple[Piece, ...]
    model_name: str
    batch_size: int
    peak_bytes: int
    plain_peak_bytes: int
    extra_time: float

    @property
    def saved_bytes(self) -> int:
        """Estimated reduction of the peak in bytes."""
        return self.plain_peak_bytes - self.peak_bytes

    def __str__(self) -> str:
        """Return the plan as text with one line per piece."""
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
    fate = f"saves all, {size}"
    if piece.recomputed:
        fate = f"recomputes {format_bytes(piece.recomputed_bytes)}, saves {size}"
    return f"  {names} ({len(piece.layers)}): {fate}"


def recorded_step(request: Request) -> RecordedStep:
    """Record a step of the request's model, with the main part as the part to cut."""
    path: Path = ()
    while True:
        graph = graph_of(main_part(request.model, path))
        step = recorded(request, path, graph)
        inner = _main_call(step)
        if inner is None:
            return step
        path = (*path, inner)


def _main_call(step: RecordedStep) -> int | None:
    """Return the call that saves more than all others together, if it can be cut.

    The call is a nested model or a layer of layers, such as an encoder with all blocks.
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
