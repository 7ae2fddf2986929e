"""TensorFlow's step, executed in a simulated allocator."""

from kerasmem.backends.trace import Graph, tracer
from kerasmem.errors import ModelError
from kerasmem.memory.estimate.outcome import answer
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import symbolic_batch
from kerasmem.memory.estimate.traced.graph import written
from kerasmem.memory.program import allocator, live, peak_of, plan, with_trials
from kerasmem.memory.program.parts import kept_for_backward, parts_of
from kerasmem.memory.timeline import watched
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
    graph = tracer().step_graph(
        followed,
        symbolic_batch(request),
        training=request.training,
        on_gpu=request.device == "gpu",
    )
    _check_no_loop(request, graph)
    step = written(graph, model, request.device)
    life = live([with_trials(step), step, step], allocator("bfc"), in_place=True)
    first, *_, later = life.peaks
    planned = plan(step, in_place=True)
    requested = peak_of(planned.events, 1, step.present).nbytes
    fused = any(op.kind.startswith("CudnnRNN") for op in graph.operations)
    below, above = _IN_CUDNN if fused else (_LOW, _HIGH)
    low, high = min(requested, round(below * later.nbytes)), round(above * later.nbytes)
    if not request.training:
        # Every batch of a new length is a first one.
        high = max(high, first.nbytes)
    extra = {
        "rounding": later.nbytes - sum(nbytes for _, nbytes in later.uses),
        "pool": max(life.pool_bytes - later.nbytes, 0),
    }
    kept = kept_for_backward(step.ops, planned.owner)
    return answer(
        request,
        "traced",
        parts_of((), later, kept, extra),
        (low, later.nbytes, high),
        (None, first.nbytes, None),
    )


def loops(graph: Graph) -> list[str]:
    """Return the names of the loops in a graph."""
    return [op.name for op in graph.operations if op.kind in _LOOPS]


def _check_no_loop(request: Request, graph: Graph) -> None:
    found = loops(graph)
    if found:
        raise ModelError(
            f"The step of {request.model.name!r} has a loop, and how much it keeps per "
            "round stands nowhere in its graph. Expected: a step without loops. "
            f"Received: {found[0]!r}. Next: km.memory.measure_step runs it."
        )
