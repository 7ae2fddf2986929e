"""Keras casts and reshapes the arguments of a nested model, and so do our walks."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import KerasMemWarning
from kerasmem.graph.calls import trace
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.values import to_numpy

L = keras.layers


@keras.saving.register_keras_serializable("nested_inputs")
class LowBits(L.Layer):
    """An embedding table of its own that takes only integers."""

    def build(self, shape):
        self.table = self.add_weight(shape=(8, 4), name="table")

    def call(self, x):
        return keras.ops.take(self.table, keras.ops.bitwise_and(x, 7), axis=0)

    def compute_output_shape(self, shape):
        return (*shape, 4)


def around(shape, *, dtype="float32"):
    ids = keras.Input((6,), dtype="int32")
    hidden = L.Dense(8, "relu")(L.Flatten()(LowBits()(ids)))
    inner = keras.Model(ids, hidden, name="inner")
    outer = keras.Input(shape, dtype=dtype)
    model = keras.Model(outer, L.Dense(2)(L.Dense(64, "relu")(inner(outer))))
    model.compile("adam", "mse")
    x = np.random.default_rng(0).integers(0, 99, (32, *shape)).astype(dtype)
    return model, x


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_a_nested_model_gets_its_own_dtype_and_rank(shape):
    model, x = around(shape)
    calls = flatten(model)
    (output,) = calls.run([keras.ops.convert_to_tensor(x)])
    np.testing.assert_array_equal(to_numpy(output), to_numpy(model(x)))
    traced = trace(model, 32)
    inputs = [c.inputs[0] for c in traced.calls if isinstance(c.operation, LowBits)]
    assert [(x.dtype, tuple(x.shape)) for x in inputs] == [("int32", (32, 6))]
    assert flatten(model).names == calls.names


def test_a_nested_model_of_the_same_dtype_gets_no_cast():
    model, _ = around((6,), dtype="int32")
    names = [type(call.operation).__name__ for call in flatten(model).calls]
    assert names == ["LowBits", "Flatten", "Dense", "Dense", "Dense"]


def test_techniques_take_a_nested_model_with_a_cast(tmp_path):
    model, x = around((6, 1))
    expected = to_numpy(model(x))
    small = km.compress(model, km.Quantize("int8-static"), data=x).model
    small.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras", compile=False)
    for one in (small, loaded):
        error = np.linalg.norm(to_numpy(one(x)) - expected)
        assert error < 0.05 * np.linalg.norm(expected)
    pruned, _ = apply_technique(km.PruneChannels(0.25, of="memory"), model)
    assert pruned.count_params() < model.count_params()


def test_rounding_estimates_and_checkpointing_take_a_nested_model_with_a_cast():
    model, x = around((6, 1))
    expected = to_numpy(model(x))
    for step in (km.Quantize("int8"), km.Quantize("int8", rounding="gptq")):
        small = km.compress(model, step, data=x).model
        error = np.linalg.norm(to_numpy(small(x)) - expected)
        assert error < 0.03 * np.linalg.norm(expected)
    with pytest.warns(
        KerasMemWarning, match="assumes that unsupported layers .*LowBits"
    ):
        estimate = km.estimate_memory(model, 8, method="analytic")
    assert estimate.by_category()["parameter"] == 4 * model.count_params()
    lean = km.rematerialize(model)
    np.testing.assert_allclose(to_numpy(lean(x)), expected, rtol=1e-5)
