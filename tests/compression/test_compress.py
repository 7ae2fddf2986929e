"""The one verb."""

import gc
import random
import weakref
import zipfile

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression import compress
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import (
    ConfigError,
    DataError,
    KerasMemWarning,
    ModelError,
    TargetError,
)
from kerasmem.graph import from_config
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain


@pytest.fixture(scope="module")
def digits():
    """Three Gaussian clouds in 20 dimensions: easy, and a bad model shows."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(3, 20)) * 1.5
    y = random.integers(0, 3, 400)
    x = (centers[y] + random.normal(size=(400, 20))).astype("float32")
    return (x[:300], y[:300]), (x[300:], y[300:])


@pytest.fixture(scope="module")
def trained(digits):
    """One for all tests: nothing that is handed in is changed."""
    keras.utils.set_random_seed(7)
    model = chain((20,), L.Dense(64, activation="relu"), L.Dense(3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    model.fit(*digits[0], epochs=3, verbose=0)
    return model


def kernels(model):
    return [to_numpy(layer.kernel) for layer in model.layers if layer.weights]


def test_pruned_fine_tuned_and_int8(trained, digits, tmp_path):
    train, test = digits
    before = trained.get_weights()
    result = km.compress(
        trained,
        [km.Prune(0.8, include="kernel"), km.Quantize("int8")],
        data=train,
        validation_data=test,
        fine_tune_epochs=3,
        seed=1,
    )
    for old, now in zip(before, trained.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)
    assert [int((k == 0).sum()) for k in kernels(result.model)] >= [1024, 153]
    assert len(quantized_variables(result.model)) == 2
    report = result.report
    assert (report.before.parameters, report.after.parameters) == (1539, 1539)
    assert report.before.weight_bytes == 4 * 1539
    assert report.after.weight_bytes == (1280 + 192) + 4 * (64 + 3) + 4 * (64 + 3)
    assert report.after.nonzero <= 256 + 39 + 64 + 3
    assert report.after.metrics["accuracy"] >= report.before.metrics["accuracy"] - 0.03
    assert report.samples == 100
    result.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    accuracy = loaded.evaluate(*test, verbose=0, return_dict=True)["accuracy"]
    assert accuracy == pytest.approx(report.after.metrics["accuracy"])
    size = (tmp_path / "small.keras").stat().st_size
    assert size == pytest.approx(report.after.file_bytes, abs=64)


@pytest.mark.one_backend
def test_the_report_measures_the_file_that_keras_writes_without_slots(
    trained, digits, tmp_path
):
    result = km.compress(trained, km.Prune(0.5), validation_data=digits[1])
    stock = chain((20,), L.Dense(64, activation="relu"), L.Dense(3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    stock.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    stock.save(tmp_path / "stock.keras")
    size = (tmp_path / "stock.keras").stat().st_size
    assert result.report.before.file_bytes == pytest.approx(size, abs=300)
    result.save(tmp_path / "small.keras")
    again = km.compress(tmp_path / "small.keras", km.Quantize())
    small = (tmp_path / "small.keras").stat().st_size
    assert again.report.before.file_bytes == small
    expected = trained.evaluate(*digits[1], verbose=0, return_dict=True)
    assert result.report.before.metrics == pytest.approx(expected, rel=1e-5)


def test_a_model_with_a_fixed_batch_or_words_for_input_is_measured_as_far_as_it_can_be(
    tmp_path,
):
    inputs = keras.Input(batch_shape=(3, 5, 6))
    stateful = keras.Model(inputs, L.LSTM(4, stateful=True)(inputs))
    report = km.compress(stateful, km.Prune(0.5), measure="latency").report
    assert report.after.latency_batch_size == 3
    words = keras.Input((), dtype="string")
    vocabulary = L.StringLookup(vocabulary=["a", "b"])(words)
    model = keras.Model(words, L.Embedding(3, 40)(vocabulary))
    assert (
        km.compress(
            model, km.Quantize(), measure=("latency", "file")
        ).report.after.latency_ms
        is None
    )


@pytest.mark.one_backend
def test_fine_tuning_without_labels_is_an_error(trained, digits):
    with pytest.raises(DataError, match="needs labels"):
        km.compress(trained, km.Prune(0.5), data=digits[0][0], fine_tune_epochs=1)


def test_a_training_that_leaves_nan_is_an_error(trained, digits):
    (x, y), _ = digits
    spoiled = x.copy()
    spoiled[7, 3] = np.nan
    text = r"Training left NaN or infinity .*, in \d+ of 1280 .*dense.*Next: .*samples"
    with pytest.raises(ModelError, match=text):
        km.compress(trained, km.Prune(0.5), data=(spoiled, y), fine_tune_epochs=1)
    masked = keras.models.clone_model(trained)
    masked.set_weights(trained.get_weights())
    masked.compile_from_config(trained.get_compile_config())
    masked.layers[-1].bias.assign([0.0, 0.0, -np.inf])
    km.compress(masked, km.Prune(0.5), data=(x, y * 0), fine_tune_epochs=1)


def test_what_was_pruned_stays_zero_while_fine_tuning(trained, digits):
    result = km.compress(
        trained, km.Prune(0.7), data=digits[0], fine_tune_epochs=2, seed=1
    )
    once = km.compress(trained, km.Prune(0.7))
    for tuned, pruned in zip(kernels(result.model), kernels(once.model), strict=True):
        np.testing.assert_array_equal(tuned == 0, pruned == 0)
        assert (tuned != pruned).any()
    dense = [layer for layer in result.model.layers if layer.weights]
    assert [layer.kernel.constraint for layer in dense] == [None, None]
    assert len(result.model.optimizer.variables) == 2


def test_the_same_seed_gives_the_same_weights(trained, digits):
    def run(seed):
        return km.compress(
            trained, km.Prune(0.7), data=digits[0], fine_tune_epochs=1, seed=seed
        ).model.get_weights()

    first, again, other = map(run, (3, 3, 4))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def numbers(backend):
    """The next number of every generator that a seed touches."""
    import tensorflow as tf

    found = [random.random(), np.random.rand(), tf.compat.v1.get_seed(1)]
    if backend == "torch":
        import torch

        found.append(torch.rand(1).item())
    return [*found, float(keras.random.uniform(()))]


def test_a_seed_leaves_the_generators_where_they_were(trained, digits, backend):
    keras.utils.set_random_seed(11)
    expected = numbers(backend)
    keras.utils.set_random_seed(11)
    km.compress(trained, km.Prune(0.7), data=digits[0], fine_tune_epochs=1, seed=3)
    assert numbers(backend) == expected


@pytest.mark.parametrize("name", ["nested", "attention", "bidirectional", "subclassed"])
def test_models_of_every_kind_are_compressed_and_reloaded(name, tmp_path):
    kind = KINDS[name]
    model = kind.make()
    result = km.compress(model, [km.Prune(0.5), km.Quantize()])
    result.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    x = kind.inputs()
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(result.model(x)))
    assert {c.technique for c in result.changes} == {"prune", "quantize"}
    assert result.report.weight_ratio > 1


@pytest.mark.one_backend
def test_a_pruned_model_is_plain_keras(trained, tmp_path):
    km.compress(trained, km.Prune(0.9)).save(tmp_path / "pruned.keras")
    with zipfile.ZipFile(tmp_path / "pruned.keras") as archive:
        assert b"kerasmem" not in archive.read("config.json")
        stored = [
            m.filename
            for m in archive.infolist()
            if m.compress_type == zipfile.ZIP_STORED
        ]
    # The date in it would else change the size of the file.
    assert stored == ["metadata.json"]


def test_several_inputs_and_outputs_by_name(tmp_path):
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    x = L.Dense(16, activation="relu")(L.Concatenate()([a, b]))
    outputs = {"sum": L.Dense(1, name="sum")(x), "sign": L.Dense(2, name="sign")(x)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile("adam", {"sum": "mse", "sign": "mse"})
    random = np.random.default_rng(0)
    inputs = {
        n: random.normal(size=(40, k)).astype("float32")
        for n, k in (("a", 4), ("b", 3))
    }
    labels = {"sum": inputs["a"][:, :1], "sign": inputs["b"][:, :2]}
    result = km.compress(
        model,
        [km.Prune(0.5), km.Quantize()],
        data=(inputs, labels),
        validation_data=(inputs, labels),
        fine_tune_epochs=1,
        measure=("metrics", "latency"),
    )
    assert result.report.before.metrics["loss"] > 0
    assert result.report.after.latency_ms > 0


def test_custom_layers_losses_and_metrics_are_taken_along(digits):
    def my_loss(y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, True)

    def my_metric(y_true, y_pred):
        return keras.ops.mean(y_pred)

    class Twice(L.Layer):
        def call(self, x):
            return 2 * x

    model = chain((20,), L.Dense(3), Twice())
    model.compile("sgd", my_loss, metrics=[my_metric])
    result = km.compress(model, km.Prune(0.5), validation_data=digits[1])
    expected = model.evaluate(*digits[1], verbose=0, return_dict=True)
    assert result.report.before.metrics == pytest.approx(expected, rel=1e-5)


def test_a_drop_of_the_metric_is_an_error(trained, digits):
    with pytest.raises(TargetError, match=r"accuracy changed from .* max_drop=0.005"):
        km.compress(trained, km.Prune(0.999), validation_data=digits[1], max_drop=0.005)
    kept = km.compress(trained, km.Quantize(), validation_data=digits[1], max_drop=0.02)
    assert kept.model is not None


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"steps": None}, ConfigError, "one or more techniques"),
        (
            {"steps": ["int8"]},
            ConfigError,
            r"Received: steps=\['int8'\]. Did you mean km.Quantize\('int8'\)\?",
        ),
        (
            {"target": {"file_bytes": 9}},
            ConfigError,
            "`target` is only available in a search",
        ),
        ({"fine_tune_epochs": 1}, ConfigError, "give data="),
        ({"fine_tune_epochs": -1}, ConfigError, "whole number from 0"),
        (
            {"max_drop": 0.1},
            ConfigError,
            "max_drop needs labeled samples.* Next: give validation_data=",
        ),
        ({"data": np.ones((4, 7))}, DataError, "20"),
        ({"data": (np.ones((4, 20)), np.arange(4))}, DataError, "from 0 to 3"),
    ],
)
def test_bad_arguments_are_one_clear_error(trained, arguments, error, text):
    with pytest.raises(error, match=text):
        km.compress(trained, **{"steps": km.Prune(0.5), **arguments})


@pytest.mark.one_backend
@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_path_that_means_nothing_is_answered_with_what_is_near(trained, field):
    name = trained.layers[-1].name
    near = rf"Did you mean .*'{name}'.*Received: {field}='{name}x/kernel'"
    with pytest.raises(ConfigError, match=near):
        km.compress(trained, km.Prune(0.5, **{field: f"{name}x/kernel"}))


@pytest.mark.one_backend
def test_a_result_says_in_one_line_what_it_is(trained, digits):
    result = km.compress(trained, km.Prune(0.5), validation_data=digits[1])
    before, after = result.report.before, result.report.after
    metrics = before.metrics["accuracy"], after.metrics["accuracy"]
    line = repr(result)
    assert line.startswith(f"<CompressionResult of {trained.name!r}: file ")
    assert "accuracy {:.4g} -> {:.4g}".format(*metrics) in line
    assert "weights 6.01 KiB -> 6.01 KiB" in line
    assert "1 weight changed" in line
    assert "\n" not in line


@pytest.mark.one_backend
def test_what_people_print_is_a_table_and_weights_left_float_come_first():
    model = chain((16,), L.Dense(40), L.Dense(50), L.Dense(60), L.Dense(2))
    ignored = [model.layers[i].name for i in (2, 3)]
    result = km.compress(
        model, km.Quantize("int8", exclude=[f"{n}/k" for n in ignored])
    )
    rows = [(c.weight, c.changed, c.detail) for c in result.changes]
    float_kernels = [(f"{name}/kernel", False, "is excluded") for name in ignored[::-1]]
    assert rows[:2] == float_kernels
    first = [i for i, (_, changed, _) in enumerate(rows) if changed]
    biases = [i for i, (name, *_) in enumerate(rows) if name.endswith("/bias")]
    assert max(first) < min(biases)
    for text in (str(result.report), repr(result.report), str(result)):
        assert "weights in RAM" in text
        assert "CompressionReport(" not in text
    assert "is excluded" in str(result)


@pytest.mark.one_backend
def test_samples_that_cannot_judge_are_said(trained, digits):
    (x, y), bare = digits[1], chain((20,), L.Dense(3))
    with pytest.warns(KerasMemWarning, match="validation_data has no labels"):
        km.compress(trained, km.Prune(0.5), validation_data=x)
    with pytest.warns(KerasMemWarning, match="the model has no loss. Next: give loss="):
        km.compress(bare, km.Prune(0.5), validation_data=(x, y))


@pytest.mark.one_backend
def test_int8_alone_cannot_be_fine_tuned(trained, digits):
    with pytest.raises(ConfigError, match=r"cannot be fine-tuned.*\['quantize'\]"):
        km.compress(trained, km.Quantize(), data=digits[0], fine_tune_epochs=1)


@pytest.mark.one_backend
def test_pruning_after_int8_is_an_error(trained):
    with pytest.raises(ModelError, match="prune before quantizing"):
        km.compress(trained, [km.Quantize(), km.Prune(0.5)])


@pytest.mark.one_backend
def test_something_that_is_no_model_is_an_error():
    with pytest.raises(
        ConfigError, match=r"keras.Model or the path .* model_or_path=3"
    ):
        km.compress(3, km.Prune(0.5))


@pytest.mark.one_backend
def test_a_model_saved_without_a_loss_needs_one_to_fine_tune(digits, tmp_path):
    model = chain((20,), L.Dense(3))
    model.save(tmp_path / "bare.keras")
    steps = {"steps": km.Prune(0.5), "data": digits[0], "fine_tune_epochs": 1}
    with pytest.raises(ConfigError, match="has no loss"):
        km.compress(tmp_path / "bare.keras", **steps)
    result = km.compress(
        tmp_path / "bare.keras",
        **steps,
        validation_data=digits[1],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    expected = result.model.evaluate(*digits[1], verbose=0, return_dict=True)
    assert result.report.after.metrics == pytest.approx(expected)
    assert expected.keys() == {"accuracy", "loss"}


@pytest.mark.one_backend
def test_a_dense_network_pruned_to_95_percent_and_int8_is_30_times_smaller(tmp_path):
    model = chain((784,), L.Dense(1024), L.Dense(512), L.Dense(10))
    model.save(tmp_path / "stock.keras")
    km.compress(model, [km.Prune(0.95), km.Quantize()]).save(tmp_path / "small.keras")
    stock, small = (
        (tmp_path / f"{name}.keras").stat().st_size for name in ("stock", "small")
    )
    assert stock / small >= 30


def test_a_model_is_copied_once_with_metrics_and_without(monkeypatch, digits):
    copies = []
    real = from_config.made_of_config
    monkeypatch.setattr(
        "kerasmem.graph.clone.made_of_config",
        lambda model, *args, **how: copies.append(model) or real(model, *args, **how),
    )
    model = keras.Sequential([keras.Input((20,)), L.Dense(3)])
    functions = model.predict_function, model.test_function
    km.compress(model, km.Quantize("int8"), verbose=0)
    assert copies == [model]
    loss = "sparse_categorical_crossentropy(from_logits=True)"
    how = {"validation_data": digits[1], "loss": loss}
    result = km.compress(model, km.Quantize("int8"), **how, verbose=0)
    assert result.report.before.metrics["loss"] > 0
    assert copies == [model] * 2
    result = km.compress(model, km.Quantize("int8"), measure="latency", verbose=0)
    assert result.report.before.latency_ms is not None
    assert copies == [model] * 4
    assert (model.predict_function, model.test_function) == functions
    assert not model.compiled


def test_a_copy_is_freed_when_a_step_returns_another_model(monkeypatch, digits):
    copies, alive = [], []

    def cloned(model, **how):
        copy = real_clone(model, **how)
        copies.append(weakref.ref(copy))
        return copy

    def figures(*arguments):
        gc.collect()
        alive.append([copy() is not None for copy in copies])
        return real_figures(*arguments)

    real_clone, real_figures = compress.clone, compress.figures
    monkeypatch.setattr(compress, "clone", cloned)
    monkeypatch.setattr(compress, "figures", figures)
    layers = [L.Dense(32, "relu"), L.Dense(3)]
    model = keras.Sequential([keras.Input((20,)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy")
    km.compress(model, km.PruneChannels(0.5), validation_data=digits[1], verbose=0)
    assert alive == [[True], [False]]


def test_a_metric_with_a_value_per_class_is_the_mean_of_its_values(digits):
    (x, y), (_, labels) = digits[1], digits[0]
    model = keras.Sequential([keras.Input((20,)), L.Dense(3, "softmax")])
    model.compile("adam", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
    data = (x, keras.utils.to_categorical(y, labels.max() + 1))
    per_class = model.evaluate(*data, verbose=0, return_dict=True)["f1_score"]
    result = km.compress(model, km.Quantize("int8"), validation_data=data, verbose=0)
    assert len(per_class) == 3
    figures = result.report.before.metrics
    assert figures["f1_score"] == pytest.approx(np.mean(per_class))
