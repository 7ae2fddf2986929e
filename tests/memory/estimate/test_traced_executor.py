"""A graph's blocks against a run on paper."""

import pytest

from kerasmem.backends.trace import Graph, Operation, Output
from kerasmem.memory.estimate.traced.executor import execute

pytestmark = pytest.mark.one_backend

KB = Output((256,), 4)


def op(name, kind, *inputs, outputs=(KB,), after=()):
    return Operation(name, kind, tuple(inputs), tuple(after), tuple(outputs))


def peak(graph, **options):
    now = most = 0
    for step in execute(graph, **options):
        now += step.nbytes if step.comes else -step.nbytes
        most = max(most, now)
    return most


def story(graph):
    return [(step.operation.name, step.comes) for step in execute(graph)]


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
        op("weight", "VarHandleOp"),
        op("x", "Placeholder"),
        op("read", "ReadVariableOp", (0, 0)),
        op("change", "MatMul", (1, 0)),
        op("assign", "AssignSubVariableOp", (0, 0), (3, 0), outputs=()),
        *([reader] if read_again else []),
    ]
    return Graph(operations, [(5, 0)] if read_again else [])


def test_a_variable_is_updated_in_its_place():
    assert story(_update(read_again=False)) == [("change", True), ("change", False)]


def test_a_variable_that_is_still_read_moves_to_a_copy():
    steps = execute(_update(read_again=True))
    copies = [step for step in steps if step.variable is not None and step.comes]
    assert [(c.operation.name, c.nbytes) for c in copies] == [("assign", KB.nbytes)]


def test_scratch_is_there_while_its_kernel_runs_and_only_on_a_gpu():
    graph = Graph([op("x", "Placeholder"), op("s", "Softmax", (0, 0))], [(1, 0)])
    assert peak(graph) == 3 * KB.nbytes
    assert peak(graph, scratch=None) == KB.nbytes
