"""All that is known of a model before its plan is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.backends import device_kind
from kerasmem.graph.inside import open_for_good
from kerasmem.graph.layers import has_graph, sublayers
from kerasmem.graph.nodes import nodes_in_order
from kerasmem.graph.segments import graph_of
from kerasmem.memory.estimate.checks import compiles
from kerasmem.memory.estimate.request import Input, Request
from kerasmem.memory.rematerialize.costs import Call, costs
from kerasmem.memory.rematerialize.part import Path, main_part
from kerasmem.memory.rematerialize.recorded import RecordedStep, recorded


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
    calls: Sequence[Call]
    fixed: frozenset[int]
    names: Sequence[str]

    @property
    def part(self) -> Any:
        """The model or nested model that is cut."""
        return main_part(self.model, self.path)


def setting_of(model: Any, batch_size: int, inputs: tuple[Input, ...]) -> Setting:
    """Return what is known of a model.

    Args:
        model: a built model with a graph.
        batch_size: samples in the batch.
        inputs: what `checked_inputs` returned.
    """
    request = _request(model, batch_size, inputs)
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
        batch_size=batch_size,
        path=path,
        step=step,
        calls=calls,
        fixed=frozenset(n for n, node in enumerate(nodes) if _is_fixed(node)),
        names=[node.operation.name for node in nodes],
    )


def _request(model: Any, batch_size: int, inputs: tuple[Input, ...]) -> Request:
    backend, device = keras.backend.backend(), device_kind()
    return Request(
        model=model,
        inputs=inputs,
        batch_size=batch_size,
        optimizer=model.optimizer if model.compiled else keras.optimizers.SGD(),
        dtype_policy=None,
        jit_compile=compiles(model, backend, device, asked=None),
        backend=backend,
        training=True,
        device=device,
    )


def _main_call(graph: Any, calls: Sequence[Call]) -> int | None:
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
