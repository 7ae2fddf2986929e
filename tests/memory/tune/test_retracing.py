"""How often a step is traced, counted exactly, and why, in words."""

import keras
import pytest
from keras import layers

from kerasmem.extras.tune.retracing import last_batch, retraces, traced_steps
from kerasmem.records import TracedStep


def steps(*rows):
    """Return steps of two epochs from (samples, traces, ms)."""
    half = len(rows) // 2
    return [TracedStep(n // half, n % half, *row) for n, row in enumerate(rows)]


@pytest.mark.one_backend
def test_a_smaller_last_batch_is_named_with_what_it_costs():
    (found,) = retraces(
        steps((32, 1, 400), (32, 1, 2), (7, 2, 303), (32, 2, 2), (32, 2, 2), (7, 2, 3)),
        compiled=True,
    )
    assert (found.epoch, found.batch, found.cost_ms) == (0, 2, 300)
    assert found.cause == (
        "traced again because the last batch has 7 samples instead of 32: drop that "
        "batch (drop_remainder=True) or pad it"
    )


@pytest.mark.one_backend
def test_a_trace_for_a_shape_that_was_there_before_has_another_cause():
    found = retraces(steps((8, 1, 9), (8, 2, 9), (8, 3, 9), (8, 3, 9)), compiled=False)
    assert [(one.epoch, one.batch) for one in found] == [(0, 1), (1, 0)]
    assert all("depends on more than the shape" in one.cause for one in found)


@pytest.mark.one_backend
def test_xla_that_compiles_what_was_traced_once_is_seen_by_its_time():
    rows = steps((32, 2, 400), (7, 2, 303), (32, 2, 2), (7, 2, 3))
    (found,) = retraces(rows, compiled=True)
    assert found.cause.startswith("compiled again because the last batch has 7 samples")
    assert retraces(rows, compiled=False) == ()


@pytest.mark.one_backend
def test_a_slow_step_of_a_size_that_was_there_is_no_retrace():
    rows = steps((32, 1, 400), (32, 1, 900), (32, 1, 2), (32, 1, 2))
    assert retraces(rows, compiled=True) == ()


@pytest.mark.usefixtures("counted_traces")
def test_a_fit_with_a_smaller_last_batch_is_counted(question, backend):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=backend == "jax")
    found = traced_steps(question(model, 8))
    assert [step.samples for step in found] == [8, 8, last_batch(8)] * 2
    counted = [step.traces for step in found]
    # TensorFlow leaves the batch axis open, JAX traces for every shape.
    assert (
        counted
        == {
            "tensorflow": [1, 1, 1, 1, 1, 1],
            "jax": [1, 1, 2, 2, 2, 2],
            "torch": [None] * 6,
        }[backend]
    )
    again = retraces(found, compiled=backend == "jax")
    assert [one.batch for one in again] == ([2] if backend == "jax" else [])


@pytest.mark.one_backend
@pytest.mark.parametrize(("size", "last"), [(1, 0), (2, 1), (8, 1), (12, 2), (32, 7)])
def test_the_last_batch_is_smaller_if_one_can_be(size, last):
    assert last_batch(size) == last < size
