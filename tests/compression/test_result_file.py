"""The file of a result, and what is measured of it."""

import gc
import pickle
import tempfile

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression import measure, writers
from kerasmem.errors import ConfigError, KerasMemWarning, OutputError
from kerasmem.files import save
from kerasmem.files.write import write_model
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


def test_what_was_trained_since_is_what_is_saved(model, tmp_path):
    result = km.compress(model, km.Prune(0.5))
    result.model.fit(X, Y, verbose=0)
    result.save(tmp_path / "a.keras")
    assert_equal(weights_in(tmp_path / "a.keras"), result.model.get_weights())


@pytest.mark.one_backend
def test_an_output_is_written_once(model, tmp_path, monkeypatch):
    calls = []

    def counted(*args, **kwargs):
        calls.append(args)
        return write_model(*args, **kwargs)

    for module in (writers, measure):
        monkeypatch.setattr(module, "write_model", counted)
    path = tmp_path / "a.keras"
    result = km.compress(model, km.Prune(0.5), output=path)
    assert len(calls) == 1
    assert path.stat().st_size == result.report.after.file_bytes
    assert_equal(weights_in(path), result.model.get_weights())
    result.save(tmp_path / "b.keras")
    assert_equal(weights_in(tmp_path / "b.keras"), weights_in(path))


@pytest.mark.one_backend
@pytest.mark.parametrize("output", [None, "a.keras"])
def test_ctrl_c_leaves_no_file(model, temporary, tmp_path, monkeypatch, output):
    def interrupted(*args, **kwargs):
        write_model(*args, **kwargs)
        raise KeyboardInterrupt

    for module in (writers, measure):
        monkeypatch.setattr(module, "write_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        km.compress(model, km.Prune(0.5), output=output and tmp_path / output)
    assert not list(temporary.iterdir())
    assert list(tmp_path.iterdir()) == [temporary]


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
def test_a_model_that_cannot_be_saved_has_figures(model, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OutputError("the file could not be opened: for a reason")

    for module in (writers, save):
        monkeypatch.setattr(module, "check", refuse)
    result = km.compress(model, km.Prune(0.5))
    assert result.report.after.file_bytes > 1000
    path = tmp_path / "a.keras"
    for use in (
        lambda: result.save(path),
        lambda: km.compress(model, km.Prune(0.5), output=path),
    ):
        with pytest.raises(OutputError, match="for a reason"):
            use()
    assert not path.exists()


ALL = ("file", "weights", "metrics", "activations", "latency")


@pytest.mark.parametrize("measured", [(), *((name,) for name in ALL), ALL])
def test_what_is_asked_for_is_measured_and_nothing_else(model, measured):
    judged = {"validation_data": (X, Y), "measure": measured}
    report = km.compress(model, km.Prune(0.5), **judged).report
    for found in (report.before, report.after):
        known = {
            "file": found.file_bytes,
            "weights": found.nonzero and found.weight_bytes and found.parameters,
            "metrics": found.metrics,
            "activations": found.activation_peak_bytes,
            "latency": found.latency_ms,
        }
        assert {name for name, value in known.items() if value} == {*measured}
    assert (report.file_ratio is None) == ("file" not in measured)
    str(report)


def test_file_weights_and_metrics_are_measured_unless_told_otherwise(model):
    after = km.compress(model, km.Prune(0.5), validation_data=(X, Y)).report.after
    assert None not in (after.file_bytes, after.nonzero)
    assert after.metrics
    assert after.latency_ms is after.activation_peak_bytes is None


def test_the_speed_is_that_of_a_batch(model):
    result = km.compress(
        model, km.Prune(0.5), validation_data=(X, Y), measure="latency"
    )
    after = result.report.after
    assert after.latency_low_ms <= after.latency_ms <= after.latency_high_ms
    assert after.latency_batch_size == 16


def test_max_drop_measures_what_it_needs(model):
    answers = model.predict(X, verbose=0)  # of which any change is a loss
    options = {"validation_data": (X, answers), "measure": "file", "max_drop": 1e3}
    assert km.compress(model, km.Prune(0.5), **options).report.after.metrics
    options["max_drop"] = 0.0
    advice = "Next: compress less, fine-tune longer, or increase max_drop"
    with pytest.raises(km.errors.TargetError, match=advice):
        km.compress(model, km.Prune(0.9), **options)
    advice = "Next: compress less, or increase max_drop"  # int3 cannot be trained
    with pytest.raises(km.errors.TargetError, match=advice):
        km.compress(model, km.Quantize("int3"), **options)


def test_what_cannot_be_measured_is_told(model):
    with pytest.raises(ConfigError, match="measure.*Received: measure='speed'"):
        km.compress(model, km.Prune(0.5), measure=("file", "speed"))


@pytest.mark.one_backend
@pytest.mark.parametrize("measured", ["metrics", ("file", "weights", "metrics")])
def test_metrics_that_are_asked_for_need_samples(model, measured):
    with pytest.raises(
        ConfigError, match=r"measure=.*validation_data=None.* Next: give validation_d"
    ):
        km.compress(model, km.Prune(0.5), measure=measured)
    assert km.compress(model, km.Prune(0.5)).report.after.metrics == {}


class Picky(L.Layer):
    """Refuses a batch of 32, as a model may run and not compile."""

    def call(self, x):
        if x.shape[0] == 32:
            raise ValueError("No batch of 32.")
        return x


@pytest.mark.one_backend
def test_a_model_that_cannot_predict_has_all_other_figures():
    picky = keras.Sequential([keras.Input((4,)), Picky(), L.Dense(40)])
    figures = [name for name in ALL if name != "metrics"]  # without samples
    with pytest.warns(KerasMemWarning, match="No latency .*ValueError.*No batch of 32"):
        result = km.compress(picky, km.Prune(0.5), measure=figures)
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


@pytest.mark.one_backend
def test_a_result_without_figures_can_be_shown(model):
    result = km.compress(model, km.Prune(0.5), measure=())
    assert "sequential'" not in repr(result) or ": ;" not in repr(result)
    assert "1 weight changed" in repr(result)
    assert "## Cost" in result.model_card()
    with pytest.raises(ConfigError, match="no size or time to plot"):
        result.plot()


@pytest.mark.one_backend
@pytest.mark.parametrize("measured", [None, 5])
def test_what_is_measured_is_names(model, measured):
    with pytest.raises(ConfigError, match=r"`measure` of compress .*some of file"):
        km.compress(model, km.Prune(0.5), measure=measured)


class Broken(keras.utils.PyDataset):
    """Cannot read its second batch."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index:
            raise FileNotFoundError("img7.png")
        return X[:8], Y[:8]


@pytest.mark.one_backend
@pytest.mark.parametrize("low_memory", [False, True])
def test_data_that_cannot_be_read_is_no_fault_of_the_output(
    model, tmp_path, low_memory
):
    model.save(tmp_path / "m.keras")
    options = {"output": tmp_path / "a.keras", "low_memory": low_memory}
    with pytest.raises(Exception, match=r"img7.png") as found:
        km.compress(
            tmp_path / "m.keras",
            km.Prune(0.5),
            validation_data=Broken(),
            **options,
        )
    assert not isinstance(found.value, OutputError)
    assert [path.name for path in tmp_path.iterdir()] == ["m.keras"]
