"""Trials that really run, and what is refused before one does."""

from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
from keras import layers

from kerasmem import errors
from kerasmem.memory.batch_size import (
    BatchSize,
    BatchSizeTrial,
    CurvePoint,
    find,
    find_batch_size,
)
from kerasmem.memory.batch_size.trial import attempt, limit_in_bytes
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.estimate.request import Input, Request
from kerasmem.processes import death
from kerasmem.units import MIB

WIDTH = 1024
LIMIT = 24 * MIB


def make_wide():
    """2 MiB of weights; 12 KiB of activations for a sample."""
    model = keras.Sequential(
        [
            keras.Input((256,)),
            layers.Dense(WIDTH, activation="relu"),
            layers.Dense(256),
            layers.Dense(WIDTH, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def wide():
    return make_wide()


@pytest.fixture(scope="module")
def too_large():
    """A trial of 64 MiB for the widest activations alone.

    TensorFlow's allocator waits ten seconds for them, while another test runs.
    """
    model = make_wide()
    with ThreadPoolExecutor(1) as thread:
        yield model, thread.submit(trial, model, 8192)


def request_for(model, batch_size):
    backend = keras.backend.backend()
    return Request(
        model=model,
        inputs=(Input("x", (batch_size, 256), "float32"),),
        batch_size=batch_size,
        optimizer=model.optimizer,
        dtype_policy=None,
        jit_compile=backend == "jax",
        backend=backend,
        training=True,
        device="cpu",
    )


def trial(model, batch_size):
    request = request_for(model, batch_size)
    return attempt(request, LIMIT, LIMIT)


@pytest.mark.usefixtures("too_large")  # it waits while this runs
def test_the_batch_found_has_run_and_was_measured(wide):
    found = find_batch_size(wide, LIMIT, largest=64)
    (tried,) = found.trials
    assert found == tried.batch_size == 64
    assert tried.fits
    assert 3 * MIB < tried.peak_bytes < LIMIT
    assert [point.batch_size for point in found.curve] == [2**n for n in range(8)]
    assert found.curve[6].predicted_bytes == found.curve[6].measured_bytes
    predicted = [point.predicted_bytes for point in found.curve]
    assert predicted == sorted(predicted)


def test_a_batch_that_does_not_fit_hurts_nobody(too_large):
    model, ended = too_large
    found = ended.result()
    assert not found.fits
    assert found.reason
    assert model.predict(keras.ops.zeros((1, 256)), verbose=0).shape == (1, 1)


@pytest.mark.one_backend
def test_without_a_limit_that_of_the_allocator_counts(monkeypatch):
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "1")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "3")
    assert limit_in_bytes(None, "cpu") == 3 * MIB


@pytest.mark.one_backend
def test_a_prediction_never_falls_where_what_was_measured_does(wide, monkeypatch):
    measured = {"peaks": [700, 600, 610, 900]}
    monkeypatch.setattr(find, "run_in_child", lambda *_, **__: measured)
    predicted = find.predictor(request_for(wide, 1), largest=8)
    assert [predicted(size) for size in (1, 2, 3, 4, 6, 8)] == [700] * 4 + [800, 900]


@pytest.mark.one_backend
def test_the_estimate_predicts_if_measuring_runs_out_of_memory(wide, monkeypatch):
    def measured(*_, doing, **__):
        raise death(doing, 1, "ResourceExhaustedError: OOM when allocating tensor")

    monkeypatch.setattr(find, "run_in_child", measured)
    predicted = find.predictor(request_for(wide, 1), largest=128)
    for size in 1, 64:
        estimate = estimate_memory(wide, size, device="cpu")
        assert predicted(size) == estimate.peak_bytes


@pytest.mark.one_backend
def test_there_is_a_prediction_where_one_sample_is_the_most(wide, monkeypatch):
    def measured(_, job, **__):
        return {"peaks": [100 * size for size in job["sizes"]]}

    monkeypatch.setattr(find, "run_in_child", measured)
    assert find.predictor(request_for(wide, 1), largest=1)(1) == 100


class Broken(layers.Layer):
    def call(self, inputs):
        if len(inputs.shape) and inputs.shape[0] == 7:
            raise RuntimeError("not seven")
        return inputs


@pytest.mark.one_backend
def test_a_step_that_fails_for_another_reason_is_no_batch_that_does_not_fit():
    model = keras.Sequential([keras.Input((256,)), Broken(), layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(errors.KerasMemError, match="Received: .*not seven"):
        trial(model, 7)


@pytest.mark.one_backend
def test_a_batch_size_is_an_int_that_knows_its_story():
    curve = (CurvePoint(8, 100, 110),)
    found = BatchSize(
        8, limit_bytes=120, curve=curve, trials=(BatchSizeTrial(8, fits=True),)
    )
    assert found == 8
    assert list(range(16))[::found] == [0, 8]
    assert (found.limit_bytes, found.curve) == (120, curve)


@pytest.mark.one_backend
def test_a_limit_below_the_weights_is_refused(wide):
    with pytest.raises(errors.ConfigError, match=r"too small for the variables"):
        find_batch_size(wide, "1MiB")


@pytest.mark.one_backend
def test_a_limit_that_is_no_size_is_refused(wide):
    with pytest.raises(errors.ConfigError, match=r"must be a number of bytes"):
        find_batch_size(wide, "a lot")


@pytest.mark.one_backend
def test_a_model_without_weights_is_refused():
    with pytest.raises(errors.ModelError, match=r"has no weights yet"):
        find_batch_size(keras.Sequential([layers.Dense(2)]), "1GiB")


@pytest.mark.one_backend
def test_a_largest_batch_of_nothing_is_refused(wide):
    with pytest.raises(errors.ConfigError, match=r"from 1\. Received: largest=0"):
        find_batch_size(wide, "1GiB", largest=0)


@pytest.mark.one_backend
def test_a_fixed_batch_axis_is_refused():
    inputs = keras.Input(batch_shape=(4, 8))
    model = keras.Model(inputs, layers.Dense(1)(inputs))
    with pytest.raises(errors.ModelError, match=r"has a fixed batch size"):
        find_batch_size(model, "1GiB", optimizer="sgd")


@pytest.mark.one_backend
def test_training_needs_an_optimizer():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    with pytest.raises(
        errors.ModelError, match=r"training step depends on the optimizer"
    ):
        find_batch_size(model, "1GiB")
