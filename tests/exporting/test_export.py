"""A LiteRT file gives what its model gives, or there is no file."""

import errno
import importlib
import os
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.result import CompressionResult
from kerasmem.errors import ConfigError, DataError, ModelError, OutputError
from kerasmem.extras.litert import export
from kerasmem.extras.litert.interpreters import LiteRT
from kerasmem.processes import ON_THE_CPU
from tests.models import KINDS, LazyBlock, OfTwoInputs, chain, in_place
from tests.one_child import one_child

L = keras.layers
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def within():
    """Convolutions in a model within a model."""
    made = KINDS["conv2d"].make()
    return chain((8, 8, 4), made, L.GlobalAveragePooling2D(), L.Dense(3))


def shared():
    """A layer that is called twice, before one of a custom class."""
    return chain((6,), KINDS["shared"].make(), LazyBlock(5))


# Each file takes seconds: what does not meet anyway shares one.
MODELS = {
    "shared": (shared, "shared"),
    "conv2d": (within, "conv2d"),
    "attention": (KINDS["attention"].make, "attention"),
    "tied_embedding": (KINDS["tied_embedding"].make, "tied_embedding"),
}
RECURRENT = ("recurrent", "bidirectional")
if not ON_TENSORFLOW:  # elsewhere TensorFlow converts them all the same, in a child
    MODELS = {"shared": MODELS["shared"]}
    RECURRENT = ()


@pytest.fixture(scope="module")
def converter():
    """Elsewhere one process with TensorFlow: each file would start one for seconds."""
    if ON_TENSORFLOW:
        yield
        return
    with one_child("tensorflow", ON_THE_CPU):
        yield


@keras.saving.register_keras_serializable("tests")
class LogDeterminant(L.Layer):
    def call(self, x):
        return keras.ops.slogdet(x)[1]


@keras.saving.register_keras_serializable("tests")
class Clock(L.Layer):
    """Gives something else at any other time: no file can equal it."""

    def call(self, x):
        return x + time.perf_counter() % 1000


def mixed_inputs():
    """Two inputs in a dict, in another order than their names; two outputs."""
    picture = keras.Input((8, 8, 3), name="picture")
    index = keras.Input((4,), dtype="int32", name="index")
    x = L.Flatten()(L.Conv2D(16, 3, strides=2, activation="relu")(picture))
    table = L.Flatten()(L.Embedding(40, 8)(index))
    both = L.Concatenate()([x, table])
    outputs = {"label": L.Dense(5)(both), "amount": L.Dense(1)(x)}
    return keras.Model({"picture": picture, "index": index}, outputs)


def conv_net():
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            L.Conv2D(32, 3),
            L.BatchNormalization(),
            L.ReLU(),
            L.Conv2D(32, 3, activation="relu"),
            L.GlobalAveragePooling2D(),
            L.Dense(100),
        ]
    )


@pytest.mark.usefixtures("converter")
@pytest.mark.parametrize("kind", MODELS)
def test_the_float_file_equals_the_model_to_1e_5(kind, tmp_path):
    path = tmp_path / "m.tflite"
    make, inputs = MODELS[kind]
    model = make()
    report = export(model, path, samples=KINDS[inputs].inputs())
    assert report.difference <= 1e-5
    assert (report.scheme, report.samples) == ("float", 3)
    assert (report.measure, report.operations) == ("relative L2", ())
    assert report.loss <= 1e-5
    assert report.file_bytes == path.stat().st_size
    x = KINDS[inputs].inputs(seed=5)
    (output,) = LiteRT(path.read_bytes())({model.inputs[0].name: x})
    expected = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("converter")
def test_inputs_keep_their_names_and_outputs_their_order(tmp_path):
    path = tmp_path / "m.tflite"
    model = mixed_inputs()
    report = export(model, path)
    assert report.difference <= 1e-5
    random = np.random.default_rng(3)
    x = {
        "picture": random.normal(size=(2, 8, 8, 3)).astype("float32"),
        "index": random.integers(0, 40, (2, 4)).astype("int32"),
    }
    file = LiteRT(path.read_bytes(), keeps_tensors=True)
    assert set(file.inputs) == set(x)
    outputs = keras.tree.flatten(model(x))
    for output, expected in zip(file(x), outputs, strict=True):
        array = keras.ops.convert_to_numpy(expected)
        np.testing.assert_allclose(output, array, rtol=1e-5, atol=1e-5)


QUANTIZED = ("int8", "int8-dynamic", "int4") if ON_TENSORFLOW else ("int4",)


@pytest.mark.usefixtures("converter")
@pytest.mark.parametrize("scheme", QUANTIZED)
def test_quantized_weights_are_exported_as_what_they_stand_for(scheme, tmp_path):
    layers = [L.Conv2D(16, 3), L.Flatten(), L.Dense(5)]
    model = chain((6, 6, 8), *layers)
    in_place(Quantize(scheme), model)
    path = tmp_path / "m.tflite"
    before = [keras.ops.convert_to_numpy(v) for v in model.variables]
    assert export(model, path, scheme="float").difference <= 1e-5
    own = {"int4": "int4"}.get(scheme, "int8-dynamic")
    assert export(model, path, tolerance=0.5).scheme == own
    for variable, value in zip(model.variables, before, strict=True):
        assert np.array_equal(keras.ops.convert_to_numpy(variable), value)


@pytest.mark.one_backend
def test_a_table_in_int4_is_exported_as_what_it_stands_for(tmp_path):
    inputs = keras.Input((6,), dtype="int32", name="words")
    table = L.Embedding(40, 8)
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(table(inputs))))
    in_place(Quantize("int4"), model)
    words = np.random.default_rng(0).integers(0, 40, (4, 6)).astype("int32")
    path = tmp_path / "m.tflite"
    assert export(model, path, scheme="float", samples=words).difference <= 1e-5


@pytest.mark.usefixtures("converter")
@pytest.mark.parametrize("kind", ["subclassed", *RECURRENT])
def test_recurrent_layers_are_exported_for_a_fixed_batch(kind, tmp_path):
    model, x = KINDS[kind].make(), KINDS[kind].inputs()
    path = tmp_path / "m.tflite"
    if kind == "recurrent":
        assert export(model, path, samples=x).difference <= 1e-5
        (detail,) = LiteRT(path.read_bytes()).inputs.values()
        assert detail["shape"][0] == 1
    report = export(model, path, samples=x, batch_size=2)
    assert report.difference <= 1e-5
    assert report.samples == 3


@pytest.mark.usefixtures("converter")
def test_a_model_in_half_precision_is_exported_in_float32(tmp_path):
    layers = [L.Conv2D(4, 3, activation="relu"), L.BatchNormalization(), L.Flatten()]
    with_policy = [
        type(x).from_config(x.get_config() | {"dtype": "mixed_bfloat16"})
        for x in layers
    ]
    model = chain((6, 6, 2), *with_policy, L.Dense(3, dtype="mixed_bfloat16"))
    report = export(model, tmp_path / "m.tflite")
    assert report.difference <= 1e-5
    assert {layer.compute_dtype for layer in model.layers[1:]} == {"bfloat16"}


@pytest.mark.usefixtures("converter")
def test_operations_that_litert_lacks_are_named(tmp_path):
    path = tmp_path / "m.tflite"
    # Of open lengths it is tried with known ones too, and they are not to blame.
    shape = (None, 4, 4) if ON_TENSORFLOW else (4, 4)
    with pytest.raises(
        ModelError, match="no kernel for LogMatrixDeterminant in the model"
    ):
        export(chain(shape, LogDeterminant()), path)
    assert not path.exists()


@pytest.mark.usefixtures("converter")
def test_open_lengths_that_litert_cannot_have_are_named_and_can_be_fixed(tmp_path):
    path = tmp_path / "m.tflite"
    x = keras.Input((None, None, 1), name="image")
    layers = [L.Conv2D(8, 3, padding="same"), L.UpSampling2D(2), L.Conv2D(1, 3)]
    model = keras.Model(x, keras.Sequential(layers)(x))
    wanted = (
        r"open lengths of the model.*'image' of shape \(batch, None, None, 1\)\. "
        r"Next: pass input_shape= \(--input-shape\)"
    )
    if ON_TENSORFLOW:
        with pytest.raises(ModelError, match=wanted):
            export(model, path)
        assert not path.exists()
    report = CompressionResult(model, None, ()).export(path, input_shape=(6, 9, 1))
    assert report.difference <= 1e-5
    image = np.random.default_rng(1).normal(size=(2, 6, 9, 1)).astype("float32")
    (output,) = LiteRT(path.read_bytes())({"image": image})
    assert output.shape == (2, 10, 16, 1)
    np.testing.assert_allclose(output, model.predict(image, verbose=0), atol=1e-5)


@pytest.mark.one_backend
def test_bad_arguments_are_told_before_anything_is_converted(tmp_path):
    model = KINDS["dense"].make()
    with pytest.raises(ConfigError, match=r"ends in \.tflite or \.onnx.*m\.pb"):
        export(model, tmp_path / "m.pb")
    with pytest.raises(ConfigError, match="float, int8-dynamic.*scheme='int3'"):
        export(model, tmp_path / "m.tflite", scheme="int3")
    with pytest.raises(ConfigError, match="whole number from 1.*batch_size=0"):
        export(model, tmp_path / "m.tflite", batch_size=0)
    with pytest.raises(DataError, match=r"shape \(2, 9\)"):
        export(model, tmp_path / "m.tflite", samples=np.zeros((2, 9)))
    with pytest.raises(ConfigError, match="whole number from 1.*batch_size='2'"):
        export(model, tmp_path / "m.tflite", batch_size="2")
    subclassed = KINDS["subclassed"].make()
    with pytest.raises(ConfigError, match="Expected: samples= with a few inputs"):
        export(subclassed, tmp_path / "m.tflite")
    two = OfTwoInputs()
    x = two.joined(*np.zeros((2, 4, 5)))
    two(x)
    reason = "called with the inputs of the data: KeyError: .* meta. Received: x named "
    with pytest.raises(DataError, match=f"{reason}mete, picture"):
        given = {"picture": x["picture"], "mete": x["meta"]}
        export(two, tmp_path / "m.tflite", samples=given)
    with pytest.raises(DataError, match="TypeError: .* list indices must be integers"):
        export(two, tmp_path / "m.tflite", samples=list(x.values()))


@pytest.mark.usefixtures("converter")
@pytest.mark.parametrize("form", ["dict", "nested"] if ON_TENSORFLOW else ["dict"])
def test_a_subclassed_model_takes_its_inputs_from_samples_in_a_dict(form, tmp_path):
    model, path = OfTwoInputs(form), tmp_path / "m.tflite"
    x = model.joined(*np.random.default_rng(0).normal(size=(2, 4, 5)).astype("float32"))
    model(x)
    report = export(model, path, samples=x)
    assert report.difference <= 1e-5
    names = {"dict": {"picture", "meta"}, "nested": {"pictures.0", "meta"}}
    assert LiteRT(path.read_bytes()).inputs.keys() == names[form]
    assert not getattr(model, "inputs", None)


def failing(*_):
    raise KeyError("Exception encountered when calling A.call().\n\n\x1b[1mno b\x1b[0m")


@pytest.mark.one_backend
def test_what_cannot_be_converted_is_told_with_its_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("kerasmem.extras.litert.convert.call_flat", failing)
    with pytest.raises(ModelError, match=r"to LiteRT: .* calling A\.call\(\)\. no b$"):
        export(chain((4,), L.Dense(2)), tmp_path / "m.tflite")


@pytest.mark.one_backend
def test_lengths_that_do_not_fit_are_told_before_anything_is_converted(tmp_path):
    path, model = tmp_path / "m.tflite", chain((None, 4), L.Dense(2))
    with pytest.raises(
        ConfigError,
        match=r"\(None, 4\) without the batch axis and with a length for every None",
    ):
        export(model, path, input_shape=(3, 5))
    with pytest.raises(DataError, match=r"Expected: \(3, 4\) .* Received: \(6, 4\)"):
        export(model, path, input_shape=(3, 4), samples=np.zeros((2, 6, 4)))


@pytest.mark.one_backend
def test_what_is_no_built_model_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"keras\.Model.*model='m\.keras'"):
        export("m.keras", tmp_path / "m.tflite")
    with pytest.raises(ModelError, match="no weights yet"):
        export(keras.Sequential([L.Dense(2)]), tmp_path / "m.tflite")


if ON_TENSORFLOW:

    def test_a_file_that_gives_something_else_is_not_written(tmp_path):
        path = tmp_path / "m.tflite"
        path.write_bytes(b"before")
        with pytest.raises(ModelError, match="differs too much from the model"):
            export(chain((4,), Clock()), path)
        assert path.read_bytes() == b"before"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_model_of_strings_is_told(tmp_path):
        words = L.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3)
        inputs = keras.Input((1,), dtype="string", name="text")
        model = keras.Model(inputs, L.Embedding(5, 2)(words(inputs)))
        for samples in (None, np.array([["a b"]])):
            with pytest.raises(
                ConfigError,
                match="numeric inputs. Received: input 'text' of dtype string",
            ):
                export(model, tmp_path / "m.tflite", samples=samples)

    def test_threads_that_convert_at_once_leave_the_streams_as_they_were():
        quiet = importlib.import_module("kerasmem.backends.converting").quiet
        began, follows, ended = (threading.Event() for _ in range(3))

        def follow():
            began.wait(5)
            with quiet():
                follows.set()
                ended.wait(5)

        before = sys.stdout, os.fstat(2).st_ino
        follower = threading.Thread(target=follow)
        follower.start()
        with quiet():
            began.set()
            together = follows.wait(0.3)
        ended.set()
        follower.join()
        after = sys.stdout, os.fstat(2).st_ino
        sys.stdout = before[0]
        assert after == before
        assert not together

    def test_a_missing_folder_is_an_error_before_the_work(tmp_path):
        with pytest.raises(ConfigError, match="There is no folder"):
            export(KINDS["dense"].make(), Path(tmp_path, "no", "m.tflite"))

    @pytest.mark.parametrize("of_tensorflow", [True, False])
    def test_a_full_disk_is_an_error_of_output(of_tensorflow, tmp_path, monkeypatch):
        def no_room(*_, **__):
            if of_tensorflow:
                errors = importlib.import_module("tensorflow").errors
                text = "variables/part; No space left on device [Op:SaveV2]"
                raise errors.ResourceExhaustedError(None, None, text)
            raise OSError(errno.ENOSPC, "No space left on device")

        archive = type(keras.export.ExportArchive())
        monkeypatch.setattr(archive, "write_out", no_room)
        with pytest.raises(OutputError, match=r"No space left on device. Nothing was"):
            export(KINDS["dense"].make(), tmp_path / "m.tflite")
        assert list(tmp_path.iterdir()) == []

    def test_a_dynamic_int8_file_is_smaller_and_near(tmp_path):
        path = tmp_path / "m.tflite"
        model = conv_net()
        report = CompressionResult(model, None, ()).export(path, scheme="int8-dynamic")
        weights = sum(np.prod(v.shape) for v in model.weights if len(v.shape) > 1)
        # One byte an entry, but the first kernel is too small to be rounded.
        assert report.file_bytes < weights + 3 * 864 + 8000
        assert 0 < report.difference < 0.02
        assert report.integer_share > 0.8

    def test_int8_dynamic_in_keras_computes_what_the_file_does(tmp_path):
        layers = [L.Conv2D(32, 3, activation="relu"), L.Conv2D(32, 3), L.ReLU()]
        tail = [L.Flatten(), L.Dense(32, activation="relu"), L.Dense(32)]
        model, path = chain((9, 9, 16), *layers, *tail), tmp_path / "m.tflite"
        x = np.random.default_rng(0).uniform(size=(4, 9, 9, 16)).astype("float32")
        export(model, path, scheme="int8-dynamic")
        small = km.compress(model, km.Quantize("int8-dynamic")).model
        expected = keras.ops.convert_to_numpy(small(x))
        (found,) = LiteRT(path.read_bytes())({model.inputs[0].name: x})
        apart = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        # A code at the edge between two may fall to either side.
        assert apart < 2e-3
