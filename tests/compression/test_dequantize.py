"""A quantized model becomes a plain float one that computes the same."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain, in_place

INT8 = km.Quantize("int8")
INT4 = km.Quantize("int4", granularity="group", group_size=4, symmetric=False)
OTHERS = [
    (kind, scheme)
    for kind in ("recurrent", "attention", "subclassed")
    for scheme in (INT4, km.Quantize("float16"))
]


def outputs(model, inputs):
    return to_numpy(model(inputs, training=False))


def classes(model):
    return [type(layer) for layer in sublayers(model)]


@pytest.mark.parametrize(("name", "scheme"), [*((n, INT8) for n in KINDS), *OTHERS])
def test_every_kind_of_model_is_again_of_the_layers_it_had(name, scheme):
    kind = KINDS[name]
    model, inputs = kind.make(), kind.inputs()
    before, shapes = classes(model), [tuple(w.shape) for w in model.weights]
    in_place(scheme, model)
    expected, codes = outputs(model, inputs), model.get_weights()
    made = km.dequantize(model)
    assert classes(made) == before
    assert [tuple(w.shape) for w in made.weights] == shapes
    np.testing.assert_allclose(outputs(made, inputs), expected, rtol=1e-5, atol=1e-6)
    assert len(quantized_variables(model)) == kind.kernels
    for a, b in zip(model.get_weights(), codes, strict=True):
        np.testing.assert_array_equal(a, b)


class Stack(keras.Model):
    """Layers of one class in a list, some of them quantized."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.steps = [L.Dense(6, name=name) for name in "abcd"]

    def call(self, x):
        for step in self.steps:
            x = keras.ops.relu(step(x))
        return x


@pytest.mark.parametrize("kind", ["sequential", "subclassed"])
@pytest.mark.parametrize("exclude", ["[ac]/", "[bd]/", "[cd]/", "[ab]/", "[abc]/"])
def test_layers_of_one_class_keep_their_weights_where_some_are_left_out(kind, exclude):
    steps = [keras.Input((6,)), *(L.Dense(6, name=name) for name in "abcd")]
    model = keras.Sequential(steps) if kind == "sequential" else Stack()
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    model(x)
    before = classes(model)
    small = km.compress(model, km.Quantize("int8", exclude=exclude)).model
    assert 0 < len(quantized_variables(small)) < 4
    made = km.dequantize(small)
    assert classes(made) == before
    np.testing.assert_allclose(outputs(made, x), outputs(small, x), atol=1e-6)


@pytest.mark.one_backend
def test_stock_keras_opens_the_file_without_kerasmem(tmp_path, new_interpreter):
    model = chain((6,), L.Dense(5, activation="relu"), L.BatchNormalization())
    small = km.compress(model, km.Quantize("int8")).model
    km.dequantize(small).save(tmp_path / "m.keras")
    np.save(tmp_path / "x.npy", KINDS["dense"].inputs()[:, :6])
    script = (
        "import keras, numpy, sys; m = keras.models.load_model('m.keras');"
        "numpy.save('y.npy', m.predict(numpy.load('x.npy'), verbose=0));"
        "assert 'kerasmem' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    expected = outputs(small, np.load(tmp_path / "x.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-6)


def test_what_is_no_weight_comes_along():
    words = keras.Input((4,), dtype="string")
    x = L.StringLookup(vocabulary=["a", "b", "c"])(words)
    x = L.Dropout(0.5, seed=3)(L.Embedding(4, 3)(x))
    if keras.backend.backend() != "tensorflow":  # words are for TensorFlow alone
        inputs = keras.Input((4,))
        scaled = L.Normalization()
        scaled.adapt(np.arange(20.0).reshape(5, 4))
        model = keras.Model(inputs, L.Dense(2)(scaled(inputs)))
        batch = np.ones((2, 4), "float32")
    else:
        model = keras.Model(words, x)
        batch = keras.ops.convert_to_tensor([["a", "z", "b", "c"]])
    in_place(km.Quantize("int8"), model)
    np.testing.assert_allclose(
        outputs(km.dequantize(model), batch), outputs(model, batch), atol=1e-6
    )


def test_what_was_frozen_and_compiled_stays_so():
    model = chain((6,), L.Dense(5), L.Dense(2))
    model.layers[1].trainable = False
    model.compile(keras.optimizers.SGD(0.25), "mae", metrics=["mse"])
    made = km.dequantize(km.compress(model, km.Quantize("int8")).model)
    assert [len(layer.trainable_variables) for layer in made.layers] == [0, 0, 2]
    assert float(to_numpy(made.optimizer.learning_rate)) == 0.25
    assert made.loss == "mae"
    x = np.ones((4, 6), "float32")
    assert made.fit(x, x[:, :2], verbose=0).history["mse"][0] > 0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_half_precision_is_kept(policy):
    model = chain((6,), L.Dense(4, dtype=policy))
    types = [w.dtype for w in model.weights]
    in_place(km.Quantize("int8"), model)
    made = km.dequantize(model)
    x = KINDS["dense"].inputs()[:, :6]
    assert [w.dtype for w in made.weights] == types
    assert keras.ops.all(made(x) == model(x))


def test_inputs_are_rounded_no_longer():
    """Against the float product of the codes themselves."""
    model = chain((6,), L.Dense(4))
    in_place(km.Quantize("int8-dynamic"), model)
    (kernel,) = quantized_variables(model)
    weight = to_numpy(kernel.codes).astype("float32") * to_numpy(kernel.scales)
    x = KINDS["dense"].inputs()[:, :6]
    found = outputs(km.dequantize(model), x)
    np.testing.assert_allclose(found, x @ weight, rtol=1e-5, atol=1e-6)


def test_lora_stays_beside_the_float_kernel():
    model = chain((6,), L.Dense(4))
    in_place(km.Quantize("int8"), model)
    model.layers[-1].enable_lora(2)
    model.layers[-1].lora_kernel_b.assign(np.ones((2, 4)))
    x = KINDS["dense"].inputs()[:, :6]
    found = outputs(km.dequantize(model), x)
    np.testing.assert_allclose(found, outputs(model, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exclude", [(), "query"])
def test_lora_inside_of_attention_stays_beside_float_kernels(exclude):
    inputs = keras.Input((5, 6))
    attention = L.MultiHeadAttention(2, 3)
    model = keras.Model(inputs, attention(inputs, inputs))
    model = km.compress(model, km.Quantize("int8", exclude=exclude), verbose=0).model
    for layer in sublayers(model):
        if layer.name in ("query", "value"):
            layer.enable_lora(2, 6)
            layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    exact = km.dequantize(model)
    assert sum("lora" in weight.name for weight in exact.trainable_weights) == 4
    np.testing.assert_allclose(
        outputs(exact, x), outputs(model, x), rtol=1e-5, atol=1e-6
    )


@pytest.mark.one_backend
def test_activations_of_int8_static_are_not_rounded_any_more():
    model = chain((6,), L.Dense(4, activation="tanh"), L.Dense(2))
    x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
    static = km.compress(model, km.Quantize("int8-static"), data=x).model
    codes = km.compress(model, km.Quantize("int8")).model
    np.testing.assert_allclose(
        outputs(km.dequantize(static), x), outputs(codes, x), atol=1e-6
    )


@pytest.mark.one_backend
def test_what_has_nothing_to_dequantize_is_an_error():
    with pytest.raises(ModelError, match="nothing to dequantize"):
        km.dequantize(chain((6,), L.Dense(4)))
    with pytest.raises(ConfigError, match="must be a keras.Model. Received"):
        km.dequantize("m.keras")


@keras.saving.register_keras_serializable("tests")
class Remembering(L.Layer):
    """A layer that saves something that is no variable, and holds another layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(5)
        self.remembered = np.zeros(3)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def save_own_variables(self, store):
        store["remembered"] = self.remembered

    def load_own_variables(self, store):
        self.remembered = store["remembered"][()]


def test_own_saved_state_of_a_layer_stays():
    model = chain((6,), Remembering())
    model.layers[-1].remembered = np.arange(3.0)
    small = km.compress(model, INT8).model
    assert quantized_variables(small)
    made = km.dequantize(small).layers[-1]
    assert type(made) is Remembering
    np.testing.assert_array_equal(made.remembered, [0, 1, 2])


@pytest.mark.one_backend
def test_a_task_may_get_another_preprocessor_after_compression():
    import keras_hub

    hub = keras_hub.models
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    tokenizer = hub.BertTokenizer(vocabulary=words)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = hub.BertBackbone(len(words), max_sequence_length=8, **sizes)
    first, second = (
        hub.BertTextClassifierPreprocessor(tokenizer, length) for length in (8, 5)
    )
    task = hub.BertTextClassifier(backbone, num_classes=2, preprocessor=first)
    small = km.compress(task, km.Quantize("int8")).model
    small.preprocessor = second
    plain = km.dequantize(small)
    assert not quantized_variables(plain)
    assert plain.preprocessor.sequence_length == 5
    inputs = plain.preprocessor(["good bad", "bad"])
    np.testing.assert_allclose(outputs(plain, inputs), outputs(small, inputs), 1e-4)
