"""The tape: what the backward pass reads, what lives, what a compiler merges."""

import keras
import pytest

from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.framework import framework, fused
from kerasmem.memory.estimate.analytic.layers import HANDLERS
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import AllocationPlan, Program, as_ready, peak_of

pytestmark = pytest.mark.one_backend

N = 256  # one tensor of 64 floats: no rounding


def tape(training=True):
    t = Tape(training)
    x = t.new((64,), 4, differentiable=True)
    t.op("input", (), x)
    return t, x


def backward(t, y):
    dy = t.new(y.shape, y.width)
    t.phase = "backward"
    t.op("loss", (y,), dy)
    t.backward([(y, dy)])


def reads_of(t, name):
    return [set(op.reads) for op in t.ops if op.name == name]


def peak(ops, in_place, kept=()):
    return peak_of(
        AllocationPlan(Program(tuple(ops), tuple(kept)), in_place=in_place).events, N
    ).nbytes


def test_a_sum_keeps_nothing_and_a_product_both_factors():
    t, x = tape()
    y = p.multiply(t, x, p.add(t, x, x))
    backward(t, y)
    assert not reads_of(t, "add gradient")
    first, second = reads_of(t, "multiply gradient")
    assert x in first | second


def test_gradients_of_a_tensor_used_twice_are_added_up():
    t, x = tape()
    p_of = p.of_output(t, "tanh", x)
    y = p.add(t, p.of_output(t, "tanh", p_of), p.of_input(t, "sin", p_of))
    backward(t, y)
    assert len(reads_of(t, "add gradients")) == 1


def test_a_function_of_its_output_keeps_that_and_not_its_input():
    t, x = tape()
    y = p.of_output(t, "relu", x)
    backward(t, y)
    (read,) = reads_of(t, "relu gradient")
    assert y in read
    assert x not in read


def test_a_chain_takes_one_tensor_in_place_and_two_beside_each_other():
    t, x = tape(training=False)
    y = x
    for _ in range(5):
        y = p.scale(t, y)
    assert peak(t.ops, in_place=True) == N
    assert peak(t.ops, in_place=False) == 2 * N


def test_what_another_operation_still_reads_is_not_written_over():
    t, x = tape(training=False)
    y = p.scale(t, x)
    p.add(t, x, y)
    assert peak(t.ops, in_place=True) == 2 * N


def test_views_take_no_memory_and_hold_what_they_look_into():
    t, x = tape(training=False)
    seen = t.view(x, (8, 8))
    other = p.scale(t, p.scale(t, t.new((64,), 4)))
    p.add(t, t.view(seen, (64,)), other)
    assert peak(t.ops, in_place=True) == 2 * N


def test_what_outlives_the_step_stays_to_the_end():
    t, x = tape(training=False)
    y = p.scale(t, x)
    p.scale(t, t.new((64,), 4))
    assert peak(t.ops, in_place=False, kept=(x, y)) == 3 * N


def test_a_compiler_never_writes_what_only_it_reads():
    t, x = tape(training=False)
    y = x
    for _ in range(5):
        y = p.scale(t, y)
    w = t.new((64,), 4, kind="parameter")
    out = p.product(t, "matmul", y, w, (64,))
    left = fused(t.ops, (out,))
    # The operand of a product must be there; the four steps before it need not.
    assert [op.name for op in left] == ["input", "scale", "matmul"]


def test_operations_run_in_the_order_in_which_they_become_ready():
    t, x = tape(training=False)
    slow = p.of_input(t, "b", p.of_input(t, "a", x))
    p.of_input(t, "c", x)
    p.of_input(t, "d", slow)
    names = [op.name for op in as_ready(t.ops, ())]
    assert names == ["input", "a", "c", "b", "d"]


# As in XLA's plans of KerasHub's attention, and on an H200 of Keras's own.
@pytest.mark.parametrize(
    ("backend", "masked", "kept"),
    [
        ("tensorflow", False, 1),
        ("tensorflow", True, 2),
        ("jax", False, 2),
        ("jax", True, 2),
    ],
)
def test_compiled_attention_keeps_scores_unless_its_product_stores_the_softmax(
    backend, masked, kept
):
    t = Tape(True, framework(backend, "gpu", compiled=True))
    q, k, v = (t.new((2, 64, 8), 4, differentiable=True) for _ in "qkv")
    shape = (2, 64, 64)
    mask = [t.new(shape, 1)] if masked else []
    site = Site(
        layer=keras.layers.Softmax(),
        names=("inputs", "mask")[: 1 + masked],
        shapes=(shape,),
        width=4,
        parameter=lambda _: t.new((), 4),
        inner=lambda *_: t.new((), 4),
        step_bytes=lambda *_: (0, 0),
    )
    scores = p.scale(t, p.product(t, "scores", q, k, shape))
    weights = HANDLERS["xla"]["Softmax"](t, site, [scores, *mask])
    backward(t, p.product(t, "mix", weights, v, q.shape))
    step = Program(tuple(t.how.ordered(t.ops, ())))
    saved = AllocationPlan(step, in_place=True).residuals()
    assert sum(x.shape == shape for x in saved) == kept
