"""Products with codes in loops over blocks, without interleaving 4-bit codes."""

import importlib
from dataclasses import replace

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.rows import Rows

L = keras.layers
LAYERS = {
    "dense": ((24,), lambda: L.Dense(150)),
    "odd inputs": ((23,), lambda: L.Dense(150)),
    "heads": ((3, 24), lambda: L.EinsumDense("abc,cde->abde", (None, 2, 70))),
    "merge": ((3, 2, 12), lambda: L.EinsumDense("abcd,cde->abe", (None, 150))),
    "summed first": ((24, 3), lambda: L.EinsumDense("abc,bd->acd", (3, 150))),
}
STEPS = {
    "int8": {"scheme": "int8"},
    "int4": {"scheme": "int4"},
    "groups": {"scheme": "int4", "group_size": 8},
    "filled groups": {"scheme": "int4", "group_size": 14},
    "odd groups": {"scheme": "int4", "group_size": 9},
    "zeros": {"scheme": "int4", "group_size": 8, "symmetric": False},
    "normal": {"scheme": "nf4", "group_size": 8},
    "three bits": {"scheme": "int3"},
}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch, backend):
    if backend != "torch":
        module = importlib.import_module(f"kerasmem.backends.{backend}.recompute")
        short = replace(module._LOOP, block_bytes=8 * 24 * 64)
        monkeypatch.setattr(module, "_LOOP", short)


def assert_same_as_floats(model, options, x):
    small = km.compress(model, km.Quantize(**options), verbose=0).model
    floats = km.dequantize(small)
    expected = floats.predict(x, verbose=0)
    outputs = small.predict(x, verbose=0)
    assert np.abs(outputs - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("options", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_are_those_of_the_float_kernel(name, options):
    shape, layer = LAYERS[name]
    inputs = keras.Input(shape)
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype("float32")
    assert_same_as_floats(keras.Model(inputs, layer()(inputs)), options, x)


@pytest.mark.parametrize("options", STEPS.values(), ids=STEPS)
def test_logits_of_a_tied_table_are_those_of_the_float_table(options):
    tokens = keras.Input((4,), dtype="int32")
    table = L.ReversibleEmbedding(200, 24)
    model = keras.Model(tokens, table(table(tokens), reverse=True))
    x = np.random.default_rng(0).integers(0, 200, (3, 4)).astype("int32")
    assert_same_as_floats(model, options, x)


def test_outputs_with_input_scales_are_those_of_the_float_kernel():
    inputs = keras.Input((24,))
    x = np.random.default_rng(0).normal(size=(16, 24)).astype("float32")
    model = keras.Model(inputs, L.Dense(150)(inputs))
    step = km.Quantize("int4", scales="awq", group_size=10)
    small = km.compress(model, step, data=x * np.arange(1, 25), verbose=0).model
    assert any("input" in v.path for v in small.variables)
    expected = km.dequantize(small).predict(x, verbose=0)
    assert np.abs(small.predict(x, verbose=0) - expected).max() < 1e-5


def test_gradients_of_inputs_are_those_of_the_float_kernel():
    inputs = keras.Input((24,))
    x = L.Dense(24, name="first")(inputs)
    model = keras.Model(inputs, L.Dense(150, name="coded")(x))
    step = km.Quantize("int4", group_size=8, exclude="first")
    small = km.compress(model, step, verbose=0).model
    floats = km.dequantize(small)
    x = np.random.default_rng(0).normal(size=(8, 24)).astype("float32")
    for each in (small, floats):
        each.get_layer("coded").trainable = False
        each.compile(keras.optimizers.SGD(0.01), "mse")
        each.fit(x, np.zeros((8, 150)), verbose=0)
    kernels = [each.get_layer("first").kernel for each in (model, small, floats)]
    before, coded, float_ = map(keras.ops.convert_to_numpy, kernels)
    assert np.abs(coded - float_).max() <= 1e-4 * np.abs(float_ - before).max()


def test_a_layout_is_halved_where_no_byte_spans_two_rows():
    assert Rows((10, 4), (0,)).halved().stored_shape == (1, 5, 4)
    assert Rows((10, 4), (0,), 4).halved().stored_shape == (3, 2, 4)  # 2 zeros
    assert Rows((4, 6, 3), (0, 1), 8).halved().stored_shape == (3, 4, 3)
    assert Rows((9, 4), (0,)).halved() is None
    assert Rows((2, 5, 3), (0, 1)).halved() is None
    assert Rows((4, 6, 3), (0, 1), 9).halved().stored_shape == (3, 4, 3)
    assert Rows((5, 6, 3), (0, 1), 8).halved() is None  # filled, two summed axes


@pytest.mark.jax
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_compiled_product_never_contains_the_float_kernel(scheme, monkeypatch):
    import jax

    monkeypatch.undo()
    inputs = keras.Input((512,))
    model = keras.Model(inputs, L.Dense(8192)(inputs))
    small = km.compress(model, km.Quantize(scheme), verbose=0).model
    call = jax.jit(lambda *state: small.stateless_call(*state)[0])
    trained, others = small.trainable_variables, small.non_trainable_variables
    state = [v.value for v in trained], [v.value for v in others]
    compiled = call.lower(*state, np.ones((1, 512), "float32")).compile()
    floats = 4 * 512 * 8192
    assert compiled.memory_analysis().temp_size_in_bytes < floats / 8


@pytest.mark.one_backend  # TensorFlow alone copies variables
def test_a_lookup_leaves_the_table_free_to_be_read_without_a_copy():
    tf = pytest.importorskip("tensorflow")
    tokens = keras.Input((4,), dtype="int32")
    table = L.ReversibleEmbedding(200, 24)
    model = keras.Model(tokens, table(table(tokens), reverse=True))
    small = km.compress(model, km.Quantize("int8"), verbose=0).model
    signature = tf.TensorSpec((None, 4), "int32")
    graph = tf.function(small).get_concrete_function(signature).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert "GatherV2" in kinds
    assert "ResourceGather" not in kinds
