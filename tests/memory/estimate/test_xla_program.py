"""Which values of a program are stored and for how long, against a run on paper."""

import pytest

from kerasmem.backends.xla.hlo import Flat, Value
from kerasmem.memory.estimate.traced.on_xla import stored, trial, written
from kerasmem.memory.program import AllocationPlan, peak_of

pytestmark = pytest.mark.one_backend

SIDE = 64
SIZE = SIDE * SIDE * 4


def value(opcode, *operands, shape=(SIDE, SIDE), name=""):
    entries = 1
    for size in shape:
        entries *= size
    return Value(opcode, name, operands, shape, 4, 4 * entries)


def temporary(program):
    return peak_of(AllocationPlan(written(program), in_place=False).events, 1).nbytes


def names(program):
    kept = stored(program).is_stored
    return [
        v.opcode for v, is_kept in zip(program.values, kept, strict=True) if is_kept
    ]


def test_a_value_between_elementwise_operations_is_not_stored():
    program = Flat(
        [
            value("parameter"),
            value("dot", 0, 0),
            value("exponential", 1),
            value("tanh", 2),
            value("dot", 3, 3),
        ],
        results=[4],
    )
    assert names(program) == ["dot", "tanh", "dot"]


def test_a_sum_of_many_is_stored_before_many_kernels_read_it():
    terms = [value("dot", 0, 0) for _ in range(8)]
    sums = [value("add", 1, 2), *(value("add", 8 + n, 3 + n) for n in range(1, 7))]
    readers = [value("reduce", 15, shape=(SIDE,)) for _ in range(3)]
    program = Flat([value("parameter"), *terms, *sums, *readers], results=[16, 17, 18])
    assert names(program).count("add") == 1


def test_a_gradient_is_gone_once_its_weight_is_updated():
    program = Flat(
        [
            value("parameter"),
            value("parameter"),
            value("dot", 0, 0),
            value("subtract", 0, 2),
            value("dot", 1, 1),
            value("subtract", 1, 4),
        ],
        results=[3, 5],
    )
    assert temporary(program) == SIZE


def test_a_weight_is_not_updated_while_it_is_still_read():
    program = Flat(
        [
            value("parameter"),
            value("parameter"),
            value("dot", 1, 1),
            value("subtract", 0, 2),
            value("dot", 1, 0),
        ],
        results=[3, 4],
    )
    assert temporary(program) == 2 * SIZE


def test_trying_a_convolution_takes_its_fourier_transforms():
    image, kernel = (1, 16, 16, 8), (3, 3, 8, 4)
    program = Flat(
        [
            value("parameter", shape=image),
            value("parameter", shape=kernel),
            value("convolution", 0, 1, shape=(1, 16, 16, 4)),
        ],
        results=[2],
    )
    tensors = sum(v.nbytes for v in program.values)
    plane = 32 * 17 * 8  # 16 + 3 - 1 padded to 32; half of the frequencies, complex
    assert trial(program, 2) == tensors + plane * (8 + 4 + 2 * 8 * 4)
