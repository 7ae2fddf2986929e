"""One option in a process of its own, and options that fail."""

import keras
import pytest
from keras import layers

from kerasmem.errors import ChildDiedError
from kerasmem.extras.tune import measure
from kerasmem.extras.tune.measure import answer, attempt
from kerasmem.extras.tune.variants import AS_COMPILED, Variant
from kerasmem.processes import run_in_child
from tests.two_devices import TWO_DEVICES, split_cpu

BATCH = 128
SOURCES = {"tensorflow": "measured", "jax": "traced", "torch": "measured"}


def answers(jobs):
    """Runs in a child: one process for both questions, for the sake of time."""
    return {name: answer(job) for name, job in jobs.items()}


def job(request, variant):
    kept = {}

    def keep(_, job, **__):
        kept.update(job)
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "run_in_child", keep)
        attempt(request, variant)
    return kept


def test_accumulation_lowers_the_peak_of_a_model_full_of_activations(
    deep, question, backend
):
    request = question(deep, BATCH, jit_compile=backend == "jax")
    found = run_in_child(
        f"{__name__}:answers",
        {
            "whole": job(request, AS_COMPILED),
            "parts": job(request, Variant("parts", steps_per_update=4)),
        },
        backend=backend,
        environment={"TF_CPU_ALLOCATOR_USE_BFC": "1", "OMP_NUM_THREADS": "1"},
    )
    whole, parts = found["whole"], found["parts"]
    assert whole["peak_source"] == parts["peak_source"] == SOURCES[backend]
    # Three of four samples less, and hardly any weights.
    assert 0.2 < parts["peak_bytes"] / whole["peak_bytes"] < 0.5
    assert whole["peak_bytes"] > BATCH * 4 * 64 * 8 * 4  # what four layers keep
    for figures in (whole, parts):
        assert figures["steps"] >= 5
        assert 0 < figures["step_low_ms"] <= figures["step_ms"]
        assert figures["step_ms"] <= figures["step_high_ms"]
        rate = 1e3 * BATCH / figures["step_ms"]
        assert figures["samples_per_second"] == pytest.approx(rate)
    assert deep.optimizer.iterations == 0


def two_devices(job):
    """Runs in a child: TensorFlow makes two devices of one CPU."""
    if keras.backend.backend() == "tensorflow":
        split_cpu()
    return answer(job) | {"devices": len(keras.distribution.list_devices())}


def test_a_batch_is_spread_over_the_devices(deep, question, backend, monkeypatch):
    if backend == "torch":
        return  # Keras needs several processes there, and no such option is tried
    found = {}

    def run(task, job, **options):
        options["environment"] = {**options["environment"], **TWO_DEVICES}
        found.update(run_in_child(f"{__name__}:two_devices", job, **options))
        return {key: value for key, value in found.items() if key != "devices"}

    monkeypatch.setattr(measure, "run_in_child", run)
    request = question(deep, 64, jit_compile=backend == "jax")
    figures = attempt(request, Variant("both", devices=2))
    assert (figures.reason, found["devices"]) == ("", 2)
    assert figures.steps >= 5


@pytest.mark.one_backend
def test_a_child_that_dies_becomes_a_line_with_its_reason(deep, question, monkeypatch):
    def die(*_, **__):
        raise ChildDiedError("It died.", how="signal 9", reason="the last line")

    monkeypatch.setattr(measure, "run_in_child", die)
    found = attempt(question(deep, 8), AS_COMPILED)
    assert found.reason == "its process ended with signal 9: the last line"
    assert found.peak_bytes is found.step_ms is None


@pytest.mark.one_backend
def test_what_cannot_be_asked_becomes_a_line_with_its_reason(deep, question):
    found = attempt(question(deep, 6), Variant("a", steps_per_update=4))
    assert found.reason == (
        "Expected a batch size divisible by 4. Received: batch_size=6."
    )


@keras.saving.register_keras_serializable("tests")
class Picky(layers.Layer):
    """Trains in float32 only, and with at least 4 samples."""

    def call(self, x, training=False):
        if training and self.compute_dtype != "float32":
            raise TypeError("Picky takes\nfloat32 only")
        if training and x.shape[0] is not None and x.shape[0] < 4:
            raise ValueError("Picky takes many")
        return x


@pytest.fixture
def here(monkeypatch):
    """Children answer in this process."""
    monkeypatch.setattr(measure, "run_in_child", lambda _, job, **__: answer(job))


def picky():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2), Picky()])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def test_what_a_framework_raises_becomes_a_line_with_its_reason(question, here):
    request = question(picky(), 8)
    found = attempt(request, Variant("a", dtype_policy="mixed_bfloat16"))
    assert "Picky takes float32 only" in found.reason
    assert found.step_ms is None


@pytest.mark.one_backend
def test_memory_that_runs_out_is_called_so(question, here, monkeypatch):
    def run_out(*_):
        raise MemoryError("no room for 8 TiB")

    monkeypatch.setattr(measure, "measure", run_out)
    found = attempt(question(picky(), 8), AS_COMPILED)
    assert found.reason == "out of memory: no room for 8 TiB"
