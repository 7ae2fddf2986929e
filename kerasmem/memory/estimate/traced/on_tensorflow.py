"""TensorFlow's graph, executed in a simulated allocator."""

from kerasmem.backends.trace import Graph, tracer
from kerasmem.errors import ModelError
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import symbolic_batch
from kerasmem.memory.estimate.traced.executor import execute
from kerasmem.memory.estimate.traced.parts import Figures, to_estimate
from kerasmem.memory.estimate.traced.pool import Life, live
from kerasmem.memory.timeline import timelines, watched
from kerasmem.records import MemoryEstimate

# Nine of ten cases measured on a GPU lay between these multiples of the estimate.
_LOW, _HIGH = 0.90, 1.12
_LOOPS = frozenset({"LoopCond", "StatelessWhile", "While"})  # lowered or not


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate of a step that TensorFlow does not compile.

    Raises:
        ModelError: if the step has a loop, whose memory no graph tells.
    """
    model, followed = watched(request.model)
    on_gpu = request.device == "gpu"
    batch = symbolic_batch(request)
    graph = tracer().step_graph(
        followed, batch, training=request.training, on_gpu=on_gpu
    )
    _check_no_loop(request, graph)
    own = [v for v in model.variables if v.category == "parameter"]
    life = live(
        [v.nbytes for v in model.variables],
        len(own),
        execute(graph, scratch=on_gpu),
        _batch_bytes(graph),
        _numbers(graph),
    )
    timeline = timelines(life.last, model, "tensorflow", range(1))[0]
    figures = _figures(life, timeline.peak_bytes)
    events = life.last.traces[0].events
    return to_estimate(request, timeline, events, figures, "traced")


def _check_no_loop(request: Request, graph: Graph) -> None:
    loops = [op.name for op in graph.operations if op.kind in _LOOPS]
    if loops:
        raise ModelError(
            f"The step of {request.model.name!r} has a loop, and how much it keeps per "
            "round stands nowhere in its graph. Expected: a step without loops. "
            f"Received: {loops[0]!r}. Next: use method='step'."
        )


def _figures(life: Life, peak: int) -> Figures:
    return Figures(
        low_bytes=min(life.requested_bytes, round(_LOW * peak)),
        high_bytes=round(_HIGH * peak),
        first_step_bytes=life.first_step_bytes,
        pool_bytes=life.pool_bytes,
    )


def _numbers(graph: Graph) -> dict[int, int]:
    """Return the number of each variable by that of its handle in the graph."""
    return {
        number: operation.attributes["variable"]
        for number, operation in enumerate(graph.operations)
        if "variable" in operation.attributes
    }


def _batch_bytes(graph: Graph) -> list[int]:
    return [
        output.nbytes
        for operation in graph.operations
        if operation.kind == "Placeholder"
        for output in operation.outputs
        if output.nbytes
    ]
