"""The program of a graph against a run on paper."""

from dataclasses import replace

import pytest

from kerasmem.backends.trace import Graph, Operation, OperationOutput
from kerasmem.memory.estimate.traced.on_tensorflow import written
from kerasmem.memory.program import AllocationPlan, RoundingAllocator, live, peak_of
from kerasmem.memory.timeline.watched import KnownVariable, LayerNode, Watched

pytestmark = pytest.mark.one_backend

KB = OperationOutput((256,), 4)


def op(name, kind, *inputs, outputs=(KB,), after=()):
    return Operation(name, kind, tuple(inputs), tuple(after), tuple(outputs))


WEIGHT = KnownVariable(
    "dense", "dense/kernel", "parameter", "[256]", "float32", KB.nbytes, is_trained=True
)
MODEL = Watched("model", LayerNode(""), (WEIGHT,), ())


def program(graph, device="gpu", model=MODEL):
    return written(graph, model, device)


def events(graph, device="gpu"):
    step = program(graph, device)
    own = {*step.present, *(x for op in step.ops[:1] for x in op.writes)}
    return [e for e in AllocationPlan(step, in_place=True).events if e.block not in own]


def peak(graph, device="gpu"):
    return peak_of(events(graph, device), 1).nbytes


def story(graph):
    return [(event.op.name, event.nbytes > 0) for event in events(graph)]


def test_a_chain_of_elementwise_operations_lives_in_one_block():
    graph = Graph(
        [
            op("x", "Placeholder"),
            op("product", "MatMul", (0, 0)),
            op("bias", "BiasAdd", (1, 0)),
            op("relu", "Relu", (2, 0)),
        ],
        results=[(3, 0)],
    )
    assert story(graph) == [("product", True)]


def test_a_block_that_somebody_still_needs_is_not_written_over():
    graph = Graph(
        [
            op("x", "Placeholder"),
            op("product", "MatMul", (0, 0)),
            op("relu", "Relu", (1, 0)),
            op("late", "MatMul", (1, 0), (2, 0)),
        ],
        results=[(3, 0)],
    )
    assert peak(graph) == 3 * KB.nbytes
    assert story(graph)[:2] == [("product", True), ("relu", True)]


def test_what_the_caller_owns_is_not_written_over():
    graph = Graph([op("x", "Placeholder"), op("relu", "Relu", (0, 0))], [(1, 0)])
    assert story(graph) == [("relu", True)]


def test_operations_start_in_the_order_in_which_they_become_ready():
    graph = Graph(
        [
            op("x", "Placeholder"),
            op("a", "MatMul", (0, 0)),
            op("b", "MatMul", (0, 0)),
            op("after a", "MatMul", (1, 0)),
            op("after b", "MatMul", (2, 0)),
        ],
        results=[(3, 0), (4, 0)],
    )
    begun = [name for name, comes in story(graph) if comes]
    assert begun == ["a", "b", "after a", "after b"]


def _update(*, read_again: bool):
    reader = op("use", "MatMul", (2, 0), (3, 0))
    operations = [
        replace(op("weight", "VarHandleOp"), attributes={"variable": 0}),
        op("x", "Placeholder"),
        op("read", "ReadVariableOp", (0, 0)),
        op("change", "MatMul", (1, 0)),
        op("assign", "AssignSubVariableOp", (0, 0), (3, 0), outputs=()),
        *([reader] if read_again else []),
    ]
    return Graph(operations, [(5, 0)] if read_again else [])


def test_a_variable_is_updated_in_its_place():
    assert story(_update(read_again=False)) == [("change", True), ("assign", False)]


def test_a_variable_that_is_still_read_moves_to_a_copy():
    step = program(_update(read_again=True))
    asked = [
        e for e in AllocationPlan(step, in_place=True).events if e.op.name == "assign"
    ]
    assert [(e.nbytes, e.block.kind) for e in asked] == [(KB.nbytes, "parameter")]
    (before,) = step.present
    (after,) = step.successors.values()
    assert before is not after
    freed = [
        e.block for e in AllocationPlan(step, in_place=True).events if not e.nbytes
    ]
    assert before in freed
    assert after not in freed


def test_after_every_step_the_variables_are_all_that_is_left():
    step = program(_update(read_again=True))
    memory = RoundingAllocator(1)
    peaks = live([AllocationPlan(step, in_place=True)] * 3, memory)
    assert len({peak.nbytes for peak in peaks}) == 1
    assert memory.in_use_bytes == KB.nbytes


def test_scratch_is_there_while_its_kernel_runs_and_only_on_a_gpu():
    graph = Graph([op("x", "Placeholder"), op("s", "Softmax", (0, 0))], [(1, 0)])
    assert peak(graph) == 3 * KB.nbytes
    assert peak(graph, device=None) == KB.nbytes
