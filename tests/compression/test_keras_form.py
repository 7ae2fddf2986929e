"""Weights in int8 in Keras's own form, which Keras opens alone."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.keras_form import keras_int8
from kerasmem.compression.quantize.owners import stand_ins
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from tests.forkserver import new_interpreter

L, Q = keras.layers, km.Quantize
X = np.arange(24).reshape(4, 6) % 20
OPENED = """
import sys
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[1] + ".npy", keras.ops.convert_to_numpy(model(np.load(sys.argv[2]))))
assert not any(name.startswith("kerasmem") for name in sys.modules)
"""


def network():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(20, 8)(x)
    x = L.EinsumDense("abc,cde->abde", (6, 2, 5), bias_axes="de")(x)
    x = L.EinsumDense("abde,dec->abc", (6, 7), activation="relu")(x)
    inner = keras.Sequential([keras.Input((6, 7)), L.Dense(9, activation="gelu")])
    return keras.Model(inputs, L.Dense(3)(L.Flatten()(inner(x))))


def refused(model, steps, text):
    small = km.compress(model, steps).model
    with pytest.raises(ConfigError, match=text):
        keras_int8(small)


def test_codes_are_ours_and_scales_are_theirs():
    small = km.compress(network(), Q("int8")).model
    before = [np.array(to_numpy(v)) for v in small.variables]
    made = keras_int8(small)
    kernels = stand_ins(small)
    layers = [each for each in sublayers(made) if each.quantization_mode == "int8"]
    assert len(kernels) == len(layers) == 5
    for kernel, layer in zip(kernels, layers, strict=True):
        is_table = isinstance(layer, L.Embedding)
        codes, scales = (layer._embeddings, layer.embeddings_scale) if is_table else (
            layer._kernel, layer.kernel_scale
        )  # fmt: skip
        np.testing.assert_array_equal(to_numpy(codes), to_numpy(kernel.codes))
        ours = np.sort(1 / to_numpy(kernel.scales).astype("float64"), axis=None)
        theirs = np.sort(to_numpy(scales), axis=None)
        np.testing.assert_array_max_ulp(theirs, ours.astype("float32"), maxulp=1)
    np.testing.assert_allclose(to_numpy(made(X)), to_numpy(small(X)), atol=1e-6)
    assert [*map(type, sublayers(made))] == [*map(type, sublayers(network()))]
    for now, value in zip(small.variables, before, strict=True):
        np.testing.assert_array_equal(to_numpy(now), value)


def test_another_process_opens_it_without_kerasmem(tmp_path):
    result = km.compress(network(), Q("int8"))
    result.save(tmp_path / "small.keras", format="keras")
    np.save(tmp_path / "x.npy", X)
    with new_interpreter():
        command = [sys.executable, "-c", OPENED, "small.keras", "x.npy"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "small.keras.npy")
    np.testing.assert_allclose(found, to_numpy(result.model(X)), atol=1e-6)


def test_a_result_from_file_to_file_becomes_one_too(tmp_path):
    network().save(tmp_path / "model.keras")
    job = {"output": tmp_path / "a.keras", "low_memory": True}
    result = km.compress(tmp_path / "model.keras", Q("int8"), **job)
    result.save(tmp_path / "b.keras", format="keras")
    loaded = keras.models.load_model(tmp_path / "b.keras")
    assert loaded.layers[1].quantization_mode == "int8"
    np.testing.assert_allclose(to_numpy(loaded(X)), to_numpy(result.model(X)), 1e-5)
    with pytest.raises(ConfigError, match="must be one of keras.*format='onnx'"):
        result.save(tmp_path / "c.keras", format="onnx")


def test_what_keras_has_no_form_for_is_refused():
    inputs = keras.Input((6, 8))
    attention = keras.Model(inputs, L.MultiHeadAttention(2, 4)(inputs, inputs))
    refused(
        attention, Q("int8"), "does not save the int8 form of the layer '.*attention"
    )
    convolution = keras.Model(inputs, L.Conv1D(2, 4)(inputs))
    refused(convolution, Q("int8"), "no int8 form of the layer .* Conv1D")
    dense = keras.Sequential([inputs, L.Dense(8)])
    for other in (Q("int4"), Q("int8", symmetric=False), Q("int8-dynamic")):
        refused(
            dense, other, "with symmetric scales per channel. Received: other codes"
        )


def test_what_is_left_out_stays_float(tmp_path):
    inputs = keras.Input((6, 8))
    x = L.Conv1D(8, 4, name="conv")(inputs)
    model = keras.Model(inputs, L.Dense(3)(x))
    result = km.compress(model, Q("int8", exclude="conv"))
    result.save(tmp_path / "a.keras", format="keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    np.testing.assert_allclose(
        to_numpy(loaded(x)), to_numpy(result.model(x)), atol=1e-5
    )
    assert loaded.get_layer("conv").kernel.dtype == "float32"
