"""Integers in files: loops over time, shared tensors, and true shares."""

import importlib
import importlib.util

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.extras.litert.interpreters import litert_module
from kerasmem.extras.litert.litert_writer import steps_of
from tests.models import chain

L = keras.layers
pytestmark = pytest.mark.one_backend
IS_INSTALLED = all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime")))
FORMATS = ("tflite", *(("onnx",) if IS_INSTALLED else ()))
STEPS, WIDTH, UNITS = 7, 24, 32


def recurrent(*head):
    keras.utils.set_random_seed(0)
    return chain((STEPS, WIDTH), L.GRU(UNITS), *head)


def sequences(count=40):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, STEPS, WIDTH)).astype("float32")


@pytest.mark.parametrize("ending", FORMATS)
def test_products_in_loops_count_once_per_step(ending, tmp_path):
    model, x = recurrent(L.Dense(10)), sequences()
    report = km.export(
        model, tmp_path / f"m.{ending}", scheme="int8-dynamic", samples=x
    )
    in_loop = STEPS * (WIDTH + UNITS) * 3 * UNITS
    assert report.integer_share == pytest.approx(in_loop / (in_loop + UNITS * 10))
    (small,) = report.operations
    assert (small.precision, small.reason) == ("float", "with fewer than 1,024 weights")


@pytest.mark.parametrize("ending", FORMATS)
def test_a_compressed_model_and_its_scheme_give_like_files(ending, tmp_path):
    model, x = recurrent(L.Dense(64)), sequences()
    plain = km.export(model, tmp_path / f"a.{ending}", scheme="int8-dynamic", samples=x)
    small = km.compress(model, km.Quantize("int8"))
    path = tmp_path / f"b.{ending}"
    report = small.export(path, samples=x)
    assert report.integer_share == plain.integer_share == 1.0
    assert report.file_bytes == pytest.approx(plain.file_bytes, rel=0.02)
    tensors = list((codes_of_litert if ending == "tflite" else codes_of_onnx)(path))
    for variable in quantized_variables(small.model):
        floats = np.asarray(variable.plain()).T
        codes = np.rint(floats / np.asarray(steps_of(floats, 127))[:, None])
        assert any(np.array_equal(codes, each) for each in tensors)


def codes_of_litert(path):
    schema = litert_module("schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            data = model.buffers[tensor.buffer].data
            if data is not None and tensor.type == schema.TensorType.INT8:
                yield np.asarray(data, np.uint8).view(np.int8).reshape(tensor.shape)


def codes_of_onnx(path):
    onnx = importlib.import_module("onnx")
    for each in onnx.load(path).graph.initializer:
        array = onnx.numpy_helper.to_array(each)
        if array.dtype == np.int8:
            yield from (array, array.T)


def test_lines_are_sentences_and_name_labels(tmp_path):
    model = recurrent(L.Dense(10, activation="softmax"))
    report = km.export(
        model, tmp_path / "m.tflite", scheme="int8-static", samples=sequences()
    )
    lines = report.lines()
    assert "labels in validation_data give the accuracy" in lines[1]
    assert any(
        line.startswith("1 operation in float, not supported in int8 by the runtime: ")
        for line in lines
    )


def test_a_share_below_one_is_not_printed_as_all():
    report = km.records.ExportReport(
        "m.onnx", "int8-dynamic", 1, 4, "relative L2", 0.0, 0.05, 0.0, 0.9997
    )
    assert report.lines()[2] == "multiplications of integers: 99.9 %"


if IS_INSTALLED:

    def residual():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((12, 12, 3))
        x = L.Conv2D(32, 3, padding="same", activation="swish")(inputs)
        y = L.Conv2D(32, 3, padding="same", activation="swish")(x)
        y = L.Conv2D(32, 3, padding="same")(y)
        x = L.Activation("swish")(L.Add()([x, y]))
        x = L.Conv2D(32, 3, strides=2, activation="swish")(x)
        return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling2D()(x)))

    def optimized(path, tmp_path):
        """Return the operation types after optimization by onnxruntime."""
        onnx, runtime = map(importlib.import_module, ("onnx", "onnxruntime"))
        options, target = runtime.SessionOptions(), tmp_path / "optimized.onnx"
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 3
        runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(target).graph.node]

    def test_no_convolution_next_to_a_shared_tensor_runs_in_float(tmp_path):
        path, rng = tmp_path / "m.onnx", np.random.default_rng(0)
        x = rng.normal(size=(40, 12, 12, 3)).astype("float32")
        model = residual()
        report = km.export(model, path, scheme="int8-static", samples=x, tolerance=1.0)
        assert not report.operations
        kinds = optimized(path, tmp_path)
        assert kinds.count("QLinearConv") == 4
        assert "Conv" not in kinds

    @pytest.mark.parametrize("scheme", ["int8-static", "int8-dynamic"])
    def test_weights_of_a_loop_take_a_byte(scheme, tmp_path):
        model, x = recurrent(L.Dense(64)), sequences()
        report = km.export(model, tmp_path / "m.onnx", scheme=scheme, samples=x)
        weights = (WIDTH + UNITS) * 3 * UNITS + UNITS * 64
        assert report.file_bytes < weights + 8000
        assert report.integer_share == 1.0

    def test_a_loop_falls_back_to_float_weights(tmp_path):
        model, x = recurrent(L.Dense(64)), sequences()
        report = km.export(
            model, tmp_path / "m.onnx", scheme="int8-dynamic", samples=x, tolerance=1e-6
        )
        assert report.loss <= 1e-6
        assert report.integer_share == 0.0
        assert {each.precision for each in report.operations} == {"float"}
        assert "multiplications of integers: 0.0 %" in report.lines()
