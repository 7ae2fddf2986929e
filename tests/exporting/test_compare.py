"""A model in every form, made, compared, timed, weighed."""

import importlib.util
from dataclasses import replace

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, DataError, ModelError
from kerasmem.extras.litert import forms, runtimes
from kerasmem.extras.litert.forms import FORMS, Resident
from kerasmem.processes.host import kernel_peak_works
from kerasmem.records import RuntimeComparison
from tests.models import KINDS

L = keras.layers
KERAS, INT8, FLOAT, DYNAMIC, STATIC = FORMS
# Elsewhere every file of the converter starts TensorFlow in a process of its own.
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
ALL = FORMS if ON_TENSORFLOW else (KERAS, INT8, DYNAMIC, STATIC)


def network():
    # Biases of zeros are left out of a file.
    biases = {"bias_initializer": "random_normal"}
    layers = [L.Dense(64, activation="relu", **biases), L.Dense(4, **biases)]
    return keras.Sequential([keras.Input((32,), name="features"), *layers])


def samples(count=40):
    return np.random.default_rng(0).normal(size=(count, 32)).astype("float32")


def quick(monkeypatch, *forms):
    """Only some forms, few turns, and no process of their own."""
    monkeypatch.setattr(runtimes, "FORMS", forms)
    monkeypatch.setattr(runtimes, "_TURNS", 3)
    resident = {"process_bytes": 5, "peak_bytes": 3}
    monkeypatch.setattr(runtimes, "_resident", lambda *_: resident)


def test_every_form_is_made_compared_timed_and_weighed(monkeypatch, capfd):
    monkeypatch.setattr(runtimes, "FORMS", ALL)
    monkeypatch.setattr(runtimes, "_TURNS", 10)
    # One process with Keras is enough, they take seconds.
    monkeypatch.setattr(forms, "resident_in_keras", once(forms.resident_in_keras))
    model, x = network(), samples()
    before = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    found = km.compare_runtimes(model, x, batch_sizes=(2, 1, 2))
    assert [r.name for r in found.runtimes] == [form.name for form in ALL]
    assert {r.reason for r in found.runtimes} == {""}
    for runtime in found.runtimes:
        assert [t.batch_size for t in runtime.times] == [1, 2]
        assert all(0 < t.low_ms <= t.milliseconds <= t.high_ms for t in runtime.times)
    by_name = {runtime.name: runtime for runtime in found.runtimes}
    floats, int8, static = (by_name[form.name] for form in (KERAS, INT8, STATIC))
    entries, biases, channels = 32 * 64 + 64 * 4, 64 + 4, 64 + 4
    assert floats.weight_bytes == 4 * (entries + biases)
    assert int8.weight_bytes == entries + 4 * (biases + channels)
    assert 0 <= static.weight_bytes - (entries + 4 * biases) < 100  # shapes
    assert by_name[DYNAMIC.name].weight_bytes < floats.weight_bytes / 2
    assert int8.file_bytes < floats.file_bytes
    assert floats.difference == 0
    assert all(0 < r.difference < 0.1 for r in found.runtimes if "int8" in r.name)
    if FLOAT in ALL:
        assert 0 <= by_name[FLOAT.name].weight_bytes - floats.weight_bytes < 100
        assert by_name[FLOAT.name].difference < 1e-5
    alone = [runtime for runtime in found.runtimes if not runtime.needs_keras]
    assert all(0 < r.peak_bytes < r.process_bytes for r in alone)
    if kernel_peak_works():
        assert all(2 * r.process_bytes < floats.process_bytes for r in alone)
    assert (found.samples, found.with_data, found.threads) == (2, True, 1)
    assert RuntimeComparison.from_json(found.to_json()) == found
    assert "making LiteRT, int8-static" in capfd.readouterr().err
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), old)


def once(function):
    """The function, which is asked only once."""
    answers = []

    def asked(*arguments):
        if not answers:
            answers.append(function(*arguments))
        return answers[0]

    return asked


def test_the_difference_of_an_int8_file_is_that_of_what_its_codes_stand_for(
    monkeypatch,
):
    quick(monkeypatch, KERAS, STATIC)
    model, x = network(), samples()
    found = km.compare_runtimes(model, x, batch_sizes=[40], verbose=0)
    static = km.compress(model, km.Quantize("int8-static"), data=x).model
    exact, rounded = model.predict(x, verbose=0), static.predict(x, verbose=0)
    off = np.abs(exact - rounded).max() / np.abs(exact).max()
    # XNNPACK may be off by a code.
    step = np.ptp(exact) / 255 / np.abs(exact).max()
    assert found.runtimes[1].difference == pytest.approx(off, abs=float(1.5 * step))


def test_samples_are_used_once_more_where_a_batch_is_larger(monkeypatch):
    quick(monkeypatch, KERAS, INT8)
    found = km.compare_runtimes(network(), samples(3), batch_sizes=[8], verbose=0)
    assert found.samples == 8
    assert found.runtimes[1].difference > 0


@pytest.mark.one_backend
def test_without_samples_there_is_no_int8_static_and_it_says_what_to_give(monkeypatch):
    quick(monkeypatch, KERAS, STATIC)
    found = km.compare_runtimes(network(), batch_sizes=[1], verbose=0)
    reason = found.runtimes[1].reason
    assert "needs samples for calibration" in reason
    assert "data=" in reason
    assert (found.with_data, found.runtimes[1].times) == (False, ())
    assert found.runtimes[1].file_bytes is None
    assert all(advice.name == KERAS.name for advice in found.advice)


@pytest.mark.one_backend
def test_what_the_converter_says_is_the_reason(monkeypatch):
    def make(given):
        raise ModelError("LiteRT has no kernel for Foo.\nNext: another.")

    quick(monkeypatch, KERAS, replace(FLOAT, make=make))
    found = km.compare_runtimes(network(), batch_sizes=[1], verbose=0)
    assert found.runtimes[1].reason == "LiteRT has no kernel for Foo. Next: another."


if ON_TENSORFLOW:

    def test_a_file_further_off_than_the_tolerance_is_dropped_and_says_what_to_set(
        monkeypatch,
    ):
        quick(monkeypatch, KERAS, DYNAMIC)
        strict, loose = (
            km.compare_runtimes(
                network(), samples(), batch_sizes=[4], tolerance=tolerance, verbose=0
            ).runtimes[1]
            for tolerance in (1e-9, 10.0)
        )
        assert "relative L2 of at most 1e-09" in strict.reason
        assert "a larger tolerance= (--tolerance)" in strict.reason
        assert loose.reason == ""


def test_numbers_that_the_model_makes_infinite_are_the_reason(monkeypatch):
    quick(monkeypatch, KERAS, STATIC)
    inputs = keras.Input((32,))
    hidden = keras.ops.log(L.Dense(4)(inputs))
    model = keras.Model(inputs, L.Dense(2)(keras.ops.nan_to_num(hidden)))
    found = km.compare_runtimes(model, samples(), batch_sizes=[1], verbose=0)
    assert [bool(runtime.reason) for runtime in found.runtimes] == [False, True]
    assert "NaN or infinity in" in found.runtimes[1].reason


def test_without_litert_what_keras_runs_is_still_compared(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "ai_edge_litert" else find(name, *rest),
    )
    quick(monkeypatch, KERAS, INT8, STATIC)
    found = km.compare_runtimes(network(), samples(), batch_sizes=[1], verbose=0)
    assert [bool(runtime.reason) for runtime in found.runtimes] == [False, False, True]
    assert "pip install kerasmem[litert]" in found.runtimes[2].reason


@pytest.mark.parametrize("kind", ["nested", "subclassed"])
def test_models_of_every_kind(kind, monkeypatch):
    quick(monkeypatch, KERAS, INT8)
    model, x = KINDS[kind].make(), KINDS[kind].inputs()
    found = km.compare_runtimes(model, x, batch_sizes=[2], verbose=0)
    assert [runtime.reason for runtime in found.runtimes] == ["", ""]
    assert 0 < found.runtimes[1].difference < 0.1


def test_inputs_in_a_dict_reach_each_form_by_their_names(monkeypatch):
    quick(monkeypatch, KERAS, INT8, STATIC)
    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    x = L.Concatenate()([L.Dense(5)(left), L.Dense(5)(right)])
    # In another order than that of their names.
    model = keras.Model({"right": right, "left": left}, L.Dense(2)(x))
    random = np.random.default_rng(0)
    data = {
        "left": random.normal(size=(40, 4)).astype("float32"),
        "right": random.normal(size=(40, 3)).astype("float32"),
    }
    found = km.compare_runtimes(model, data, batch_sizes=[4], verbose=0)
    assert [runtime.reason for runtime in found.runtimes] == ["", "", ""]
    assert all(runtime.difference < 0.1 for runtime in found.runtimes)


@pytest.mark.one_backend
def test_a_model_that_cannot_go_to_another_process_has_no_memory(monkeypatch, capfd):
    def refuse(*_):
        raise ModelError("parts from the running script")

    monkeypatch.setattr(runtimes, "FORMS", (KERAS,))
    monkeypatch.setattr("kerasmem.extras.litert.forms.resident_in_keras", refuse)
    (found,) = km.compare_runtimes(network(), batch_sizes=[1]).runtimes
    assert (found.process_bytes, found.reason) == (None, "")
    assert "parts from the running script" in capfd.readouterr().err


@pytest.mark.one_backend
def test_memory_beyond_the_start_is_none_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.setattr(runtimes, "FORMS", (KERAS,))
    target = "kerasmem.extras.litert.forms.resident_in_keras"
    monkeypatch.setattr(target, lambda *_: Resident(None, None))
    found = km.compare_runtimes(network(), batch_sizes=[1], verbose=0)
    assert found.runtimes[0].peak_bytes is None
    assert "least memory" not in " ".join(advice.use for advice in found.advice)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"batch_sizes": []}, ConfigError, r"from 1.*batch_sizes=\[\]"),
        ({"batch_sizes": [0]}, ConfigError, r"from 1.*batch_sizes=0"),
        ({"batch_sizes": 8}, ConfigError, "batch_sizes=8"),
        ({"batch_sizes": [True]}, ConfigError, r"batch_sizes=True"),
        ({"threads": 0}, ConfigError, "threads=0"),
        ({"data": np.ones((4, 7), "float32")}, DataError, "7"),
        ({"data": np.full((40, 32), np.nan, "float32")}, DataError, "(?i)nan"),
    ],
)
def test_bad_arguments_are_one_clear_error(arguments, error, text, monkeypatch):
    quick(monkeypatch, KERAS, STATIC)
    with pytest.raises(error, match=text):
        km.compare_runtimes(network(), **arguments, verbose=0)


class Untold(keras.Model):
    """Its config does not tell the function that it is made with."""

    def __init__(self, function):
        super().__init__()
        self.function, self.last = function, L.Dense(2)

    def call(self, x):
        return self.last(self.function(x))


@pytest.mark.one_backend
def test_models_that_cannot_be_compared_are_refused():
    untold = Untold(lambda x: 2 * x)
    untold(samples())
    with pytest.raises(ModelError, match="get_config"):
        km.compare_runtimes(untold, samples(), verbose=0)
    with pytest.raises(ConfigError, match=r"keras\.Model.*model='m\.keras'"):
        km.compare_runtimes("m.keras")
    with pytest.raises(ModelError, match="no weights yet"):
        km.compare_runtimes(keras.Sequential([L.Dense(2)]))
    small = km.compress(network(), km.Quantize("int8")).model
    with pytest.raises(ModelError, match=r"Expected: a float model.*km\.dequantize"):
        km.compare_runtimes(small)
    static = km.compress(network(), km.Quantize("int8-static"), data=samples()).model
    with pytest.raises(ModelError, match="float model"):
        km.compare_runtimes(static)
    model, x = KINDS["subclassed"].make(), KINDS["subclassed"].inputs()
    with pytest.raises(ConfigError, match="are not known.*data="):
        km.compare_runtimes(model, verbose=0)
    with pytest.raises(DataError, match="called with the inputs.* named left, right"):
        km.compare_runtimes(model, {"left": x, "right": x}, verbose=0)
