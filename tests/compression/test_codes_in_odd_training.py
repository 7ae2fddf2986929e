"""Training through codes where inputs, batches or gradients are of a rare kind."""

import gc
import weakref

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.graph.values import to_numpy
from tests.compression.aware.gradient import gradient_of


def coded(inputs, outputs, scheme="int4"):
    """Return a model with a Dense in codes, with LoRA, and that layer."""
    keras.utils.set_random_seed(1)
    model = keras.Model(inputs, outputs(keras.layers.Dense(8, name="coded")(inputs)))
    small = km.compress(model, km.Quantize(scheme), verbose=0).model
    layer = small.get_layer("coded")
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones((2, 8)))
    small.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return small, layer


def moved(weight, step):
    """Return by how much a step moves a weight."""
    before = to_numpy(weight).copy()
    step()
    return np.abs(to_numpy(weight) - before).max()


@pytest.mark.parametrize("rows", [0, 1])
def test_a_batch_may_be_empty(rows):
    model, _ = coded(keras.Input((6,)), lambda y: y)
    x = np.ones((rows, 6), "float32")
    found = gradient_of(lambda t: model(t, training=True), x)
    assert found.shape == (rows, 6)
    assert np.isfinite(found).all()


def test_what_comes_out_may_be_gathered():
    edges = keras.ops.convert_to_tensor([0, 2, 2])
    model, layer = coded(keras.Input((6,)), lambda y: keras.ops.take(y, edges, axis=0))
    x, y = np.ones((3, 6), "float32"), np.zeros((3, 8), "float32")
    assert moved(layer.lora_kernel_b, lambda: model.train_on_batch(x, y)) > 0


@pytest.mark.one_backend
def test_inputs_may_be_sparse():
    import tensorflow as tf

    model, layer = coded(keras.Input((6,), sparse=True), lambda y: y)
    x, y = tf.sparse.eye(4, 6), np.zeros((4, 8), "float32")
    assert moved(layer.lora_kernel_b, lambda: model.train_on_batch(x, y)) > 0


class Mapped(keras.layers.Layer):
    """Calls a layer row by row."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def call(self, x, training=None):
        return keras.ops.vectorized_map(
            lambda row: self.inner(row[None], training=training)[0], x
        )

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner)
        return {**super().get_config(), "inner": inner}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config.pop("inner"))
        return cls(inner, **config)


def test_a_layer_may_be_called_in_a_vectorized_map():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    inner = keras.layers.Dense(8, name="coded")
    inner.build((None, 6))
    x = keras.layers.Dense(6, name="front")(inputs)
    model = keras.Model(inputs, Mapped(inner)(x))
    with keras.saving.custom_object_scope({"Mapped": Mapped}):
        step = km.Quantize("int4", exclude="front")
        small = km.compress(model, step, verbose=0).model
        plain = km.dequantize(small)
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    changes = []
    for one in (small, plain):
        one.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        y, kernel = np.zeros((5, 8), "float32"), one.get_layer("front").kernel
        changes.append(moved(kernel, lambda m=one, y=y: m.train_on_batch(x, y)))
    assert changes[0] == pytest.approx(changes[1], rel=1e-4)
    assert changes[0] > 0


def test_nothing_is_left_of_a_model_that_was_trained():
    model, layer = coded(keras.Input((6,)), lambda y: y)
    model.train_on_batch(np.ones((3, 6), "float32"), np.zeros((3, 8), "float32"))
    alive = [weakref.ref(each) for each in (model, layer, layer._kernel)]
    del model, layer
    keras.utils.clear_session()
    gc.collect()
    assert [each() for each in alive] == [None] * 3


def test_lora_beside_int8_dynamic_and_in_half_precision_is_that_of_the_floats():
    for policy, scheme in (("float32", "int8-dynamic"), ("mixed_float16", "int4")):
        keras.config.set_dtype_policy(policy)
        try:
            model, _ = coded(keras.Input((6,)), lambda y: y, scheme)
            plain = km.dequantize(model)
        finally:
            keras.config.set_dtype_policy("float32")
        x = np.ones((3, 6), "float32")
        close = 1e-5 if policy == "float32" else 2e-2
        found, expected = (
            to_numpy(keras.ops.stop_gradient(m(x))).astype("float32")
            for m in (model, plain)
        )
        np.testing.assert_allclose(found, expected, atol=close)
