"""The whole: every option, the front, what was found beside it."""

import keras
import pytest
from keras import layers

from kerasmem.errors import ConfigError, ModelError
from kerasmem.extras.tune import measure, tune
from kerasmem.records import Tuning


@pytest.fixture
def here(monkeypatch):
    """Children answer in this process, with figures that are known."""

    def figures(_, job, **__):
        if job["left_out"] or job["model"]["optimizer"] is None:
            return {"reason": "lost"}
        batches = job["steps_per_update"]
        ms = 10.0 * batches
        as_compiled = job["jit_compile"] == (keras.backend.backend() == "jax")
        return {
            "peak_bytes": 1000 // batches,
            "peak_low_bytes": 1000 // batches,
            "peak_source": "measured" if as_compiled else "traced",
            "first_step_ms": 100.0,
            "step_ms": ms,
            "step_low_ms": ms,
            "step_high_ms": ms,
            "steps": 5,
            "samples_per_second": 1e3 * 12 / ms,
        }

    monkeypatch.setattr(measure, "run_in_child", figures)


@pytest.fixture
def small():
    inputs = keras.Input((4,), name="table")
    model = keras.Model(inputs, layers.Dense(9, name="nine")(inputs))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    return model


def test_the_first_line_is_as_compiled_and_the_front_is_marked(small, here, backend):
    said = []
    found = tune(small, 12, say=said.append)
    by_name = {variant.name: variant for variant in found.variants}
    assert next(iter(by_name)) == "as compiled"
    # As compiled runs twice, and is one line of twice as many steps.
    assert by_name["as compiled"].steps == 10
    assert said[0] == f"1 of {len(by_name) + 1}: as compiled"
    assert said[-1].endswith(f"{len(said)}: as compiled")
    assert [v.peak_bytes for v in found.variants if "accumulation" in v.name] == [
        500,
        250,
    ]
    # A peak that is found in another way than the first is not compared with it.
    ran = {v.name for v in found.variants if not v.reason and "jit" not in v.name}
    assert {variant.name for variant in found.variants if variant.on_front} == ran
    assert (backend == "tensorflow") == (by_name.keys() >= {"constant folding off"})
    assert found.noise == 0
    assert "use accumulation, 4 batches (batch_size=3 and" in found.recommendation
    assert "at 4.00 times the step time" in found.recommendation


@pytest.mark.one_backend
def test_what_was_fast_only_once_is_not_recommended(small, monkeypatch):
    runs = []

    def lucky(_, job, **__):
        half = job["steps_per_update"] == 2
        runs.append(half)
        ms = 5.0 if half and sum(runs) == 1 else 10.0
        names = ("first_step_ms", "step_ms", "step_low_ms", "step_high_ms")
        return dict.fromkeys(names, ms) | {"steps": 5}

    monkeypatch.setattr(measure, "run_in_child", lucky)
    said = []
    found = tune(small, 12, only=["accumulation, 2"], say=said.append)
    assert said[-1] == "again, to confirm: accumulation, 2 batches"
    assert sum(runs) == 2
    twice = found.variants[1]
    assert (twice.step_low_ms, twice.step_high_ms, twice.steps) == (5, 10, 10)
    assert found.recommendation.startswith("Keep the current options")


@pytest.mark.one_backend
def test_a_record_of_it_survives_json(small, here):
    found = tune(small, 12, only=["accumulation, 2"])
    assert [variant.name for variant in found.variants] == [
        "as compiled",
        "accumulation, 2 batches",
    ]
    assert Tuning.from_json(found.to_json()) == found


def test_inputs_of_open_length_need_a_shape(here, backend):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(9, 8)(tokens))
    model = keras.Model(tokens, layers.Dense(8)(x))
    model.compile("sgd", "mse", jit_compile=backend == "jax")
    with pytest.raises(ModelError, match=r"Next: pass input_shape= \(--input-shape\)"):
        tune(model, 8)
    tune(model, 8, input_shape=(5,), only=["accumulation"])


@pytest.mark.one_backend
def test_an_option_that_is_not_there_is_refused_with_those_that_are(small, here):
    with pytest.raises(ConfigError, match=r"one of 'jit o.*Received: only='turbo'"):
        tune(small, 12, only=["turbo"])


@pytest.mark.one_backend
def test_a_batch_of_another_size_than_the_models_is_refused(here):
    inputs = keras.Input(batch_shape=(4, 8))
    model = keras.Model(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match=r"Expected: 4\. Received: batch_size=8"):
        tune(model, 8)
