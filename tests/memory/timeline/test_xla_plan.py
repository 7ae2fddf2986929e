"""The step that JAX compiled for a small network, as it was recorded once.

Dense(50), Dense(30) and Dense(3) on batches of 32 samples of 20 numbers, with Adam.
"""

import gzip
from pathlib import Path

import pytest

from kerasmem.backends.xla.hlo import read_buffers, read_program
from kerasmem.backends.xla.plan import step_plan

pytestmark = pytest.mark.one_backend

DATA = Path(__file__).parents[2] / "data"
ARGUMENTS, TEMPORARY = 34_788, 29_584  # XLA's own figures of this step
PARAMETERS = 4 * (20 * 50 + 50 + 50 * 30 + 30 + 30 * 3 + 3)


def recorded(name):
    return gzip.decompress((DATA / f"jax_step_{name}.pb.gz").read_bytes())


@pytest.fixture(scope="module")
def step():
    buffers = read_buffers(recorded("buffers"))
    return step_plan(recorded("program"), buffers, "cpu", lambda _: None)


def test_the_arguments_are_weights_slots_counters_and_the_batch(step):
    batch = 32 * 20 * 4 + 32 * 4
    counters = 6 * 4  # iterations, learning rate, two metrics of two numbers
    sizes = [argument.nbytes for argument in step.arguments]
    assert sum(sizes) == ARGUMENTS == 3 * PARAMETERS + batch + counters


def test_the_plan_stays_within_the_memory_that_xla_takes(step):
    peak = max(event.in_use_bytes for event in step.trace.events)
    (reserved_bytes,) = {event.reserved_bytes for event in step.trace.events}
    assert ARGUMENTS < peak <= reserved_bytes
    assert reserved_bytes >= ARGUMENTS + TEMPORARY


def test_no_two_blocks_lie_in_one_place_at_one_time(step):
    alive = {argument.address: argument.nbytes for argument in step.arguments}
    in_use = sum(alive.values())
    for event in step.trace.events:
        if event.is_allocation:
            end = event.address + event.given_bytes
            assert not any(a < end and event.address < a + s for a, s in alive.items())
            alive[event.address] = event.given_bytes
        else:
            assert alive.pop(event.address) == event.given_bytes
        in_use = sum(alive.values())
        assert in_use == event.in_use_bytes


def test_the_names_are_those_of_the_framework(step):
    names = {event.operation for event in step.trace.events if event.is_allocation}
    assert "jit(train_step)/transpose(jvp(dense_1))/dot_general" in names
    shapes = {
        (e.shape, e.dtype) for e in step.trace.events if "jvp(dense)" in e.operation
    }
    assert ("[32,50]", "float32") in shapes


def test_our_reader_agrees_with_the_classes_that_tensorflow_brings():
    from tensorflow.compiler.xla.service import hlo_pb2

    module = hlo_pb2.HloModuleProto.FromString(recorded("program"))
    program = read_program(recorded("program"))
    entry = next(c for c in module.computations if c.id == program.entry)
    ours = program.computations[program.entry]
    assert program.roots[program.entry] == entry.root_id
    scheduled = module.schedule.sequences[program.entry].instruction_ids
    assert [one.number for one in ours] == list(scheduled)
    assert {one.number: (one.opcode, one.operands, one.called) for one in ours} == {
        one.id: (one.opcode, tuple(one.operand_ids), tuple(one.called_computation_ids))
        for one in entry.instructions
    }
    assignment = hlo_pb2.BufferAssignmentProto.FromString(recorded("buffers"))
    buffers = read_buffers(recorded("buffers"))
    assert [
        (a.size, a.is_local, a.is_argument, len(a.places)) for a in buffers.allocations
    ] == [
        (a.size, a.is_thread_local, a.is_entry_computation_parameter, len(a.assigned))
        for a in assignment.buffer_allocations
    ]
    assert buffers.defined == {
        b.id: (b.defined_at.instruction_id, tuple(b.defined_at.shape_index))
        for b in assignment.logical_buffers
    }
