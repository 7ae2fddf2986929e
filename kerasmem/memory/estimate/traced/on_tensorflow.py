"""TensorFlow's graph, executed in a simulated allocator."""

from dataclasses import replace

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
_IN_CUDNN = 0.7, 1.5
"""The same where cuDNN runs a recurrent layer: it does not say what it takes."""
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
    constants = _bytes_of(graph, "Const")
    life = live(
        [v.nbytes for v in model.variables],
        len(own),
        execute(graph, request.device),
        _bytes_of(graph, "Placeholder"),
        _numbers(graph),
        constants,
    )
    timeline = timelines(life.last, model, "tensorflow", range(1))[0]
    fused = any(op.kind.startswith("CudnnRNN") for op in graph.operations)
    figures = _figures(
        life,
        timeline.peak_bytes,
        spread=_IN_CUDNN if fused else (_LOW, _HIGH),
        constant_bytes=sum(constants),
    )
    if not request.training:
        # Every batch of a new length is a first one.
        high = max(figures.high_bytes, life.first_step_bytes)
        figures = replace(figures, high_bytes=high)
    events = life.last.traces[0].events
    return to_estimate(request, timeline, events, figures, "traced")


def loops(graph: Graph) -> list[str]:
    """Return the names of the loops in a graph."""
    return [op.name for op in graph.operations if op.kind in _LOOPS]


def _check_no_loop(request: Request, graph: Graph) -> None:
    found = loops(graph)
    if found:
        raise ModelError(
            f"The step of {request.model.name!r} has a loop, and how much it keeps per "
            "round stands nowhere in its graph. Expected: a step without loops. "
            f"Received: {found[0]!r}. Next: use method='step'."
        )


def _figures(
    life: Life, peak: int, *, spread: tuple[float, float], constant_bytes: int
) -> Figures:
    low, high = spread
    return Figures(
        low_bytes=min(life.requested_bytes, round(low * peak)),
        high_bytes=round(high * peak),
        first_step_bytes=life.first_step_bytes,
        pool_bytes=life.pool_bytes,
        constant_bytes=constant_bytes,
    )


def _numbers(graph: Graph) -> dict[int, int]:
    """Return the number of each variable by that of its handle in the graph."""
    return {
        number: operation.attributes["variable"]
        for number, operation in enumerate(graph.operations)
        if "variable" in operation.attributes
    }


def _bytes_of(graph: Graph, kind: str) -> list[int]:
    """Return the bytes of each output of the operations of a kind."""
    return [
        output.nbytes
        for operation in graph.operations
        if operation.kind == kind
        for output in operation.outputs
        if output.nbytes
    ]
