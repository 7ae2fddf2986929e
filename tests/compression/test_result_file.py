"""The file of a result: written once, measured, copied, never of an older model."""

import copy
import gc
import pickle
import tempfile
import warnings

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression import result as result_module
from kerasmem.compression import written as written_module
from kerasmem.errors import KerasMemWarning, OutputError
from tests.models import L, chain

X, Y = np.ones((16, 6), "float32"), np.ones((16, 2), "float32")


@pytest.fixture
def model():
    keras.utils.set_random_seed(3)
    model = chain((6,), L.Dense(40, activation="relu"), L.Dense(2))
    model.compile("adam", "mse")
    return model


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files, which is empty now."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def weights_in(path):
    return keras.models.load_model(path).get_weights()


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_is_written_once_and_copied_as_often_as_it_is_saved(
    model, tmp_path, monkeypatch
):
    result = km.compress(model, km.Prune(0.5))
    monkeypatch.setattr(result_module, "save_model", None)  # nothing is written anew
    for name in ("a.keras", "b.keras"):
        result.save(tmp_path / name)
        size = (tmp_path / name).stat().st_size
        assert size == result.report.after.file_bytes
    assert (tmp_path / "a.keras").read_bytes() == (tmp_path / "b.keras").read_bytes()
    assert_equal(weights_in(tmp_path / "a.keras"), result.model.get_weights())


def test_what_was_trained_since_is_what_is_saved(model, tmp_path):
    result = km.compress(model, km.Prune(0.5))
    result.model.fit(X, Y, verbose=0)
    result.save(tmp_path / "a.keras")
    assert_equal(weights_in(tmp_path / "a.keras"), result.model.get_weights())


def another_entry(model):
    model.layers[-1].bias.assign([0.0, 1e-30])


def another_rate(model):
    model.optimizer.learning_rate.assign(0.5)


def another_loss(model):
    model.compile("sgd", "mae")


def another_name(model):
    model.layers[-1].name = "another"


def another_layer(model):
    model.beside = L.Dense(3)
    model.beside.build((None, 2))


CHANGES = [another_entry, another_rate, another_loss, another_name, another_layer]


@pytest.mark.one_backend
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_makes_another_file(model, change):
    result = km.compress(model, km.Prune(0.5))
    before = written_module.fingerprint(result.model)
    result.model.predict(X, verbose=0)
    assert before == written_module.fingerprint(result.model)
    change(result.model)
    assert before != written_module.fingerprint(result.model)


@pytest.mark.one_backend
def test_a_file_that_is_gone_is_written_anew(model, temporary, tmp_path):
    result = km.compress(model, km.Prune(0.5))
    (found,) = temporary.rglob("*.keras")
    found.unlink()
    result.save(tmp_path / "a.keras")
    assert_equal(weights_in(tmp_path / "a.keras"), result.model.get_weights())


@pytest.mark.one_backend
def test_the_temporary_file_goes_with_the_result(model, temporary):
    result = km.compress(model, km.Prune(0.5))
    assert len(list(temporary.iterdir())) == 1
    other = copy.copy(result)
    del result
    gc.collect()
    assert not list(temporary.iterdir())
    assert other.report.after.latency_ms > 0


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["save_model", "fingerprint"])
def test_ctrl_c_leaves_no_temporary_file(model, temporary, monkeypatch, name):
    original = getattr(written_module, name)

    def interrupted(*args, **kwargs):
        original(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(written_module, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        km.compress(model, km.Prune(0.5))
    assert not list(temporary.iterdir())


@pytest.mark.one_backend
def test_a_result_goes_to_another_process_and_is_saved_there(temporary, tmp_path):
    result = km.compress(chain((6,), L.Dense(40), L.Dense(2)), km.Prune(0.5))
    there = pickle.loads(pickle.dumps(result))
    assert there.report == result.report
    there.save(tmp_path / "a.keras")
    assert_equal(weights_in(tmp_path / "a.keras"), result.model.get_weights())
    del result, there
    gc.collect()
    assert not list(temporary.iterdir())


@pytest.mark.one_backend
def test_who_saves_a_file_that_cannot_be_opened_hears_why(model, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OutputError("the file could not be opened: for a reason")

    with monkeypatch.context() as patched:
        patched.setattr(written_module, "save_model", refuse)
        result = km.compress(model, km.Prune(0.5))
    assert result.report.after.file_bytes > 1000
    monkeypatch.setattr(result_module, "save_model", refuse)
    with pytest.raises(OutputError, match="for a reason"):
        result.save(tmp_path / "a.keras")


def test_speed_is_measured_when_somebody_asks(model):
    result = km.compress(model, km.Prune(0.5), validation_data=(X, Y))
    assert result.untimed.after.latency_ms is None
    assert "latency" not in repr(result)
    result.model.fit(X, Y, verbose=0)  # as fast as before
    after = result.report.after
    assert after.latency_ms > 0
    assert after.latency_low_ms <= after.latency_ms <= after.latency_high_ms
    assert after.latency_batch_size == 16
    assert after.metrics == result.untimed.after.metrics
    assert result.report is result.report


@pytest.mark.one_backend
def test_the_speed_of_a_model_that_is_another_by_now_is_not_told(model):
    result = km.compress(model, km.Prune(0.5))
    model.layers[-1].enable_lora(1)
    with pytest.warns(KerasMemWarning, match="No latency .*is another one by now"):
        assert result.report.before.latency_ms is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.report.after.file_bytes > 0


class Picky(L.Layer):
    """Refuses a batch of 32, as a model may run and not compile."""

    def call(self, x):
        if x.shape[0] == 32:
            raise ValueError("No batch of 32.")
        return x


@pytest.mark.one_backend
def test_a_model_that_cannot_predict_has_all_other_figures():
    picky = keras.Sequential([keras.Input((4,)), Picky(), L.Dense(40)])
    result = km.compress(picky, km.Prune(0.5))
    with pytest.warns(KerasMemWarning, match="No latency .*ValueError.*No batch of 32"):
        assert result.report.before.latency_ms is None
    assert result.report.after.nonzero == 80  # of 160; biases are zeros
    assert result.report.after.file_bytes > 0


@pytest.mark.one_backend
def test_a_vocabulary_that_changed_is_saved(tmp_path):
    words = L.TextVectorization(output_sequence_length=3)
    words.adapt(["red green"])
    body = [keras.Input((), dtype="string"), words, L.Embedding(9, 4), L.Dense(40)]
    result = km.compress(keras.Sequential(body), km.Prune(0.5))
    result.model.layers[0].adapt(["blue white black"])
    result.save(tmp_path / "a.keras")
    assert "blue" in km.load_model(tmp_path / "a.keras").layers[0].get_vocabulary()


class Chain(keras.layers.Layer):
    """Calls functions that only its config names."""

    def __init__(self, functions, **options):
        super().__init__(**options)
        self.functions = [keras.activations.get(each) for each in functions]

    def call(self, x):
        for function in self.functions:
            x = function(x)
        return x

    def get_config(self):
        functions = [keras.activations.serialize(each) for each in self.functions]
        return {**super().get_config(), "functions": functions}


def raised(x):
    return keras.ops.relu(x) + 1


@pytest.mark.parametrize("form", ["kerasmem", "keras"])
def test_a_result_is_saved_within_a_scope_of_custom_objects(form, tmp_path):
    scope = {"Chain": Chain, "raised": raised}
    layers = [keras.Input((8,)), keras.layers.Dense(64), Chain([raised])]
    x = np.ones((2, 8), "float32")
    with keras.saving.custom_object_scope(scope):
        result = km.compress(keras.Sequential(layers), km.Quantize("int8"), verbose=0)
        result.save(tmp_path / "small.keras", format=form)
        again = km.load_model(tmp_path / "small.keras")

        both = [model.predict(x, verbose=0) for model in (again, result.model)]
        np.testing.assert_allclose(*both, rtol=1e-5)
    assert "raised" not in keras.saving.get_custom_objects()
