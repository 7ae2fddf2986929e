"""With samples, a model goes from file to file layer by layer, as through memory."""

import gc
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.backends import at_rest
from kerasmem.backends.lazy import source_at_rest
from kerasmem.compression import sources
from kerasmem.compression.measure import evaluate_by_layers
from kerasmem.errors import ConfigError, KerasMemWarning, TargetError
from kerasmem.files.described import offloaded_model
from tests.compression.two_ways import both

L, Q = keras.layers, km.Quantize
RNG = np.random.default_rng(0)


def vision():
    """A shared layer, a nested model, BatchNormalization, a penalty on weights."""
    keras.utils.set_random_seed(0)
    inner = keras.Sequential(
        [keras.Input((6, 6, 8)), L.DepthwiseConv2D(3), L.Conv2D(12, 1, name="last")],
        name="inner",
    )
    x = inputs = keras.Input((8, 8, 3))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, name="first")(x)))
    shared = L.Conv2D(8, 3, padding="same", activation="relu", name="shared")
    x = L.Add()([shared(x), shared(L.MaxPooling2D(1)(x))])
    x = L.GlobalAveragePooling2D()(inner(x))
    head = L.Dense(4, "softmax", kernel_regularizer="l2", name="head")
    model = keras.Model(inputs, head(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x = RNG.normal(size=(70, 8, 8, 3)).astype("float32")
    return model, (x, RNG.integers(0, 4, 70))


def text():
    """Two inputs by name, one with a mask; two outputs with losses of their own.

    The batches are whole ones: of the loss of one output among several Keras takes on
    TensorFlow the mean over batches, on JAX and torch, as here, that over samples.
    """
    keras.utils.set_random_seed(1)
    words = keras.Input((9,), dtype="int32", name="words")
    figures = keras.Input((5,), name="figures")
    states = L.LSTM(12, return_sequences=True)(
        L.Embedding(30, 8, mask_zero=True)(words)
    )
    both = L.Concatenate()([L.GlobalAveragePooling1D()(states), figures])
    active = L.Dense(16, "relu", activity_regularizer="l2")(both)
    outputs = {
        "tag": L.Dense(3, name="tag")(states),
        "score": L.Dense(1, name="score")(active),
    }
    model = keras.Model({"words": words, "figures": figures}, outputs)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        "adam", {"tag": losses, "score": "mse"}, weighted_metrics={"score": ["mae"]}
    )
    x = {
        "words": RNG.integers(0, 30, (64, 9)) * (np.arange(9) < 7),
        "figures": RNG.normal(size=(64, 5)).astype("float32"),
    }
    y = {"tag": RNG.integers(0, 3, (64, 9)), "score": RNG.normal(size=(64, 1))}
    return model, (x, y, {"tag": np.ones((64, 9)), "score": RNG.uniform(size=64)})


MODELS = {"vision": vision, "text": text}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder, samples = tmp_path_factory.mktemp("layer_by_layer"), {}
    for name, make in MODELS.items():
        model, samples[name] = make()
        for weight in model.weights:  # statistics that are none of first values
            if weight.dtype == "float32":
                weight.assign(weight + RNG.uniform(0, 0.1, weight.shape))
        model.save(folder / f"{name}.keras")
        km.save_model(model, folder / f"{name}-deflate.keras")
    return folder, samples


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Let the few weights of these tests stay in files, and hardly any be lent."""
    monkeypatch.setattr(at_rest, "_LEAST_KEPT", 16)
    monkeypatch.setattr(at_rest, "_REGION_BYTES", 1 << 14)
    monkeypatch.setattr(at_rest, "MOST_LENT_BYTES", 1 << 11)


def static(method="min-max"):
    return Q("int8-static", calibration=km.Calibration(method))


CASES = {
    "vision": {
        "int4 in groups": Q("int4", granularity="group", group_size=8),
        "int8 with corrected biases": Q("int8", bias_correction=True),
        "mixed": Q("mixed", budget=km.Budget("4KiB")),
        "prune, then int8": [km.Prune(0.6), Q("int8")],
        "int8-static by averages": static("moving-average"),
        "cluster, then int8-static": [km.Cluster(16), static()],
    },
    "text": {
        "int8-dynamic": Q("int8-dynamic"),
        "int8 by the error": Q("int8", scales="mse"),
        "float16": Q("float16"),
        "int8-static": static("entropy"),
    },
}


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model in CASES for name in CASES[model]]
)
def test_file_account_and_metrics_are_those_of_the_way_through_memory(
    written, tmp_path, model, name
):
    folder, samples = written
    data = samples[model]
    expected, found = both(
        folder / f"{model}.keras",
        CASES[model][name],
        tmp_path,
        data=data,
        validation_data=data,
        seed=0,
    )
    assert found._model is None
    assert [*found.changes] == [*expected.changes]
    for ours, theirs in (
        (found.report.before, expected.report.before),
        (found.report.after, expected.report.after),
    ):
        assert theirs.metrics
        assert list(ours.metrics) == list(theirs.metrics)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-6, abs=1e-6)
        assert ours.nonzero == theirs.nonzero
        assert ours.activation_peak_bytes == theirs.activation_peak_bytes
        assert ours.latency_ms is None


class Batches(keras.utils.PyDataset):
    """Twenty samples at a time."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return math.ceil(len(self.arrays[0]) / 20)

    def __getitem__(self, index):
        return tuple(array[20 * index : 20 * (index + 1)] for array in self.arrays)


def test_metrics_are_those_of_keras_without_labels_weights_or_whole_batches(
    written, tmp_path
):
    folder, samples = written
    x, y = samples["vision"]
    weights = RNG.uniform(size=70)
    whole = km.load_model(folder / "vision-deflate.keras")
    with offloaded_model(folder / "vision.keras", None, tmp_path) as model:
        assert sum(source_at_rest(v) is not None for v in model.weights) > 9
        for data in ((x, y), (x, y, weights)):
            for size in (70, 32, 9):
                expected = whole.evaluate(
                    *data[:2],
                    sample_weight=data[2] if data[2:] else None,
                    batch_size=size,
                    verbose=0,
                    return_dict=True,
                )
                found = evaluate_by_layers(model, data, size)
                assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
        found = evaluate_by_layers(model, Batches(x, y), 1)
        expected = whole.evaluate(x, y, batch_size=20, verbose=0, return_dict=True)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
        outputs = keras.ops.convert_to_numpy(model(x, training=False))
    np.testing.assert_allclose(outputs, whole.predict(x, verbose=0), atol=1e-6)


def test_a_drop_or_an_interrupt_leaves_nothing(written, tmp_path, monkeypatch):
    folder, samples = written
    output, path = tmp_path / "a.keras", folder / "vision-deflate.keras"
    x = samples["vision"][0]
    data = x, km.load_model(path).predict(x, verbose=0).argmax(-1)
    arguments = {"output": output, "low_memory": True, "validation_data": data}
    with pytest.raises(TargetError):
        km.compress(path, km.Prune(0.99), data=data, max_drop=0, **arguments)
    assert [*tmp_path.iterdir()] == []

    def interrupt(*_):
        raise KeyboardInterrupt

    output.write_text("old")
    monkeypatch.setattr("kerasmem.compression.measure.evaluate_by_layers", interrupt)
    with pytest.raises(KeyboardInterrupt):
        km.compress(path, Q("int8"), data=data, **arguments)
    assert [file.name for file in tmp_path.iterdir()] == ["a.keras"]
    assert output.read_text() == "old"
    gc.collect()
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])  # as ever
    assert source_at_rest(model.weights[0]) is None


@keras.saving.register_keras_serializable("tests.layer_by_layer")
class Judge(keras.Model):
    """Evaluates itself in a way of its own."""

    def test_step(self, *args):
        return super().test_step(*args)


@keras.saving.register_keras_serializable("tests.layer_by_layer")
class Subclassed(keras.Model):
    """A model without a graph, whose layers are called in a loop."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = [L.Dense(24, "relu"), L.Dense(24, "relu"), L.Dense(3, "softmax")]

    def build(self, shape):
        for part in self.parts:
            part.build(shape)
            shape = (*shape[:-1], part.units)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


def saved(model, path):
    x, y = RNG.normal(size=(40, 12)).astype("float32"), RNG.integers(0, 3, 40)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model(x[:1])
    model.save(path)
    return x, y


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("step", [Q("int8"), static()], ids=["int8", "int8-static"])
def test_a_model_without_a_graph_goes_as_a_whole_call(tmp_path, step):
    data = saved(Subclassed(), tmp_path / "m.keras")
    options = {"data": data, "validation_data": data}
    expected, found = both(tmp_path / "m.keras", step, tmp_path, **options)
    for ours, theirs in (
        (found.report.before, expected.report.before),
        (found.report.after, expected.report.after),
    ):
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-6, abs=1e-6)


def test_one_that_evaluates_itself_is_held_in_memory_with_a_word(tmp_path, monkeypatch):
    inputs = keras.Input((12,))
    data = saved(Judge(inputs, L.Dense(3, "softmax")(inputs)), tmp_path / "m.keras")
    options = {"validation_data": data, "output": tmp_path / "a.keras"}
    with pytest.raises(
        ConfigError, match="'.*' of class Judge overrides the evaluation"
    ):
        km.compress(tmp_path / "m.keras", Q("int8"), low_memory=True, **options)
    monkeypatch.setattr(sources, "_SHARE", 0.0)
    with pytest.warns(
        KerasMemWarning, match="class Judge overrides the evaluation of Keras"
    ):
        result = km.compress(tmp_path / "m.keras", Q("int8"), **options)
    assert result._model is not None
    with pytest.warns(
        KerasMemWarning, match="loaded into memory completely.*'factorize'"
    ):
        km.compress(tmp_path / "m.keras", km.Factorize(0.5), **options)


CHILD = """
import os, sys, threading, time
import keras, numpy as np, psutil
import kerasmem as km
from kerasmem.backends import at_rest

at_rest.MOST_LENT_BYTES = 8 << 20
model, step, output = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(32, 1024)).astype("float32")
data = (x, np.zeros((32, 1), "float32"))
layers = [keras.layers.Dense(units, "relu") for units in (1024, 1024, 1)]
small = keras.Sequential([keras.Input((1024,)), *layers])
small.compile("adam", "mse")
small.save(output)  # what a framework loads on first use is no memory of a model
warm = dict(data=data, validation_data=data, low_memory=True)
km.compress(output, km.Quantize(step), output=output, **warm)
process, peak, done = psutil.Process(), [0], threading.Event()

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], process.memory_info().rss)
        time.sleep(0.005)

before = process.memory_info().rss
thread = threading.Thread(target=watch)
thread.start()
result = km.compress(model, km.Quantize(step), output=output, **warm)
done.set(); thread.join()
assert result.report.after.metrics
print(peak[0] - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["int8", "int8-static"])
def test_memory_is_bounded_by_a_few_layers(tmp_path, step):
    path, width, count = tmp_path / "model.keras", 1024, 32
    x = inputs = keras.Input((width,))
    for _ in range(count):
        x = L.Dense(width, "relu")(x)
    model = keras.Model(inputs, L.Dense(1)(x))
    model.compile("adam", "mse")
    model.save(path)
    weights = 4 * width * width * count
    del model
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, path, step, tmp_path / "a.keras"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(km.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    peak = json.loads(done.stdout.splitlines()[-1])
    assert peak < 0.6 * weights, f"{peak / 2**20:.0f} MiB of {weights >> 20}"


@keras.saving.register_keras_serializable("tests")
class ReadsBothFirst(L.Layer):
    """Reads two weights before it computes, as a fused LSTM does."""

    def build(self, shape):
        self.first = self.add_weight(shape=(shape[-1], 256), name="first")
        self.second = self.add_weight(shape=(256, 256), name="second")

    def call(self, x):
        first, second = map(keras.ops.convert_to_tensor, (self.first, self.second))
        return keras.ops.matmul(keras.ops.matmul(x, first), second)


def test_a_weight_that_is_lent_outlives_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(at_rest, "MOST_LENT_BYTES", 1 << 10)
    model = keras.Sequential([keras.Input((256,)), ReadsBothFirst()])
    model.save(tmp_path / "m.keras")
    x = RNG.normal(size=(4, 256)).astype("float32")
    with offloaded_model(tmp_path / "m.keras", None, tmp_path) as opened:
        assert all(source_at_rest(weight) is not None for weight in opened.weights)
        outputs = keras.ops.convert_to_numpy(opened(x))
    expected = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
