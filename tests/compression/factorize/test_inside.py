"""Factors inside of layers, where no graph could take them in a layer's place."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy
from tests.forkserver import new_interpreter
from tests.keras_hub.families import FAMILIES, apart, samples, targets
from tests.keras_hub.matrix import generated
from tests.low_rank import low_rank
from tests.masked import called

# Keras says it of a task of KerasHub whenever it loads one.
pytestmark = pytest.mark.filterwarnings("ignore:.compile\\(\\). was not called")

RNG = np.random.default_rng(0)
PLAIN = {"metrics": [], "weighted_metrics": [], "jit_compile": False}
OPENED = """
import sys
import numpy as np
import keras, kerasmem as km
x = dict(np.load(sys.argv[1]))
model = km.load_model(sys.argv[2], compile=False)
np.save(sys.argv[3], keras.ops.convert_to_numpy(model(x)))
"""


@keras.saving.register_keras_serializable("tests.inside")
class Parts(keras.Model):
    """Products of every kind in a `call` that cannot be read."""

    def __init__(self, **options):
        super().__init__(**options)
        own = {"dtype": self.dtype_policy}
        dense = layers.Dense(20, activation="relu", **own)
        self.wide = layers.Conv1D(24, 3, padding="causal", activation="tanh", **own)
        self.attend = layers.MultiHeadAttention(2, 8, **own)
        self.picture = layers.Conv2D(16, (3, 2), strides=(2, 1), padding="same", **own)
        self.each = layers.TimeDistributed(dense, **own)
        self.head = layers.Dense(10, use_bias=False, **own)

    def call(self, inputs):
        x = self.wide(inputs)
        x = x + self.attend(x, x)
        x = self.picture(keras.ops.expand_dims(x, 1))
        return self.head(self.each(keras.ops.squeeze(x, 1)))


def parts(**options):
    keras.utils.set_random_seed(2)
    model = Parts(**options)
    x = np.random.default_rng(0).normal(size=(64, 6, 12)).astype("float32")
    model(x)
    return model, x


def test_every_product_is_the_nearest_of_its_rank(tmp_path):
    model, x = parts()
    before = model.get_weights()
    result = km.compress(model, km.Factorize(0.5), verbose=0)
    wanted, size = low_rank(model, 0.5)
    assert isinstance(result.model, Parts)
    assert result.model.count_params() == size
    np.testing.assert_allclose(
        to_numpy(result.model(x)), to_numpy(wanted(x)), rtol=1e-4, atol=1e-5
    )
    assert result.report.after.file_bytes < result.report.before.file_bytes
    assert result.report.after.parameters == size
    changed = [change for change in result.changes if change.changed]
    assert len(changed) == 8
    (of_head,) = [x for x in changed if x.weight.startswith("dense_")]
    kernel, low = model.head.kernel, wanted.head.kernel
    noise = np.square(to_numpy(kernel) - to_numpy(low)).sum()
    exact = 10 * np.log10(np.square(to_numpy(kernel)).sum() / noise)
    assert of_head.sqnr_db == pytest.approx(exact, rel=1e-4)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    # Whoever asks a layer for its kernel gets the product.
    np.testing.assert_allclose(
        to_numpy(result.model.attend._query_dense.kernel),
        to_numpy(wanted.attend._query_dense.kernel),
        atol=1e-5,
    )
    result.save(tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(result.model(x)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_stays(policy, tmp_path):
    model, x = parts(dtype=policy)
    small = km.compress(model, km.Factorize(0.5), verbose=0).model
    kernels = [v for v in small.weights if v.name == "kernel"]
    assert {v.dtype for v in kernels} == {"float32"}
    y = small(x)
    assert keras.backend.standardize_dtype(y.dtype) == policy.removeprefix("mixed_")
    wanted, _ = low_rank(model, 0.5)
    assert apart([to_numpy(y)], [to_numpy(wanted(x))]) < 0.03
    km.save_model(small, tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras", compile=False)
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(y))


def test_factors_train_and_go_on_training_from_a_file(tmp_path):
    model, x = parts()
    small = km.compress(model, km.Factorize(0.5), verbose=0).model
    small.compile("adam", "mse")
    before = [to_numpy(v) for v in small.trainable_variables]
    kernel = to_numpy(small.head.kernel)
    y = RNG.normal(size=(len(x), 6, 10)).astype("float32")
    first = small.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert first[-1] < first[0]
    for variable, old in zip(small.trainable_variables, before, strict=True):
        # The softmax of attention takes no notice of the bias of its keys.
        assert "key/bias" in variable.path or (to_numpy(variable) != old).any()
    head = small.head
    now = to_numpy(head.factor_0.kernel) @ to_numpy(head.factor_1.kernel)
    np.testing.assert_allclose(to_numpy(head.kernel), now, rtol=1e-5, atol=1e-6)
    assert np.abs(now - kernel).max() > 1e-4
    km.save_model(small, tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras")
    np.testing.assert_allclose(to_numpy(again(x)), to_numpy(small(x)), atol=1e-6)
    assert again.fit(x, y, verbose=0).history["loss"][0] < first[-1]


def test_the_graph_and_the_inside_are_factorized_together(tmp_path):
    inputs = keras.Input((6, 12))
    x = layers.Dense(16, activation="relu", name="outer")(inputs)
    x = layers.TimeDistributed(layers.Dense(20), name="each")(x)
    model = keras.Model(inputs, layers.MultiHeadAttention(2, 8, name="attend")(x, x))
    model.compile("sgd", "mse")
    result = km.compress(model, km.Factorize(0.25), verbose=0)
    wanted, size = low_rank(model, 0.25)
    small = result.model
    assert small.count_params() == size
    assert [layer.name for layer in small.layers][1:3] == ["outer_first", "outer_last"]
    values = RNG.normal(size=(2, 6, 12)).astype("float32")
    np.testing.assert_allclose(
        to_numpy(small(values)), to_numpy(wanted(values)), 1e-4, 1e-6
    )
    assert small.compiled
    result.save(tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras")
    np.testing.assert_array_equal(to_numpy(again(values)), to_numpy(small(values)))


CHAINS = {
    "int8": ([km.Quantize("int8")], 0.02),
    "int8-dynamic": ([km.Quantize("int8-dynamic")], 0.03),
    "int8-static": ([km.Quantize("int8-static")], 0.05),
    "int4": ([km.Quantize("int4", granularity="group", group_size=4)], 0.2),
    "prune": ([km.Prune(0.1), km.Quantize("int8")], 0.2),
    "again": ([km.Factorize(0.25, include="head")], 1.0),
}


@pytest.mark.parametrize("name", CHAINS)
def test_other_techniques_take_the_factors(name, tmp_path):
    model, x = parts()
    steps, limit = CHAINS[name]
    own = km.Factorize(0.5, exclude="head" if name == "again" else ())
    result = km.compress(model, [own, *steps], data=x, verbose=0)
    floats = km.compress(model, own, verbose=0).model
    y = to_numpy(result.model(x))
    assert 0 < apart([y], [to_numpy(floats(x))]) < limit
    stored = [c for c in result.changes if c.technique == "quantize" and c.changed]
    if name.startswith("int"):
        assert len(stored) == 16  # two factors of eight kernels
    result.save(tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras")
    np.testing.assert_allclose(to_numpy(again(x)), y, rtol=1e-5, atol=1e-6)
    if name in ("int8", "int4"):
        np.testing.assert_allclose(to_numpy(km.dequantize(again)(x)), y, 1e-3, 1e-5)


@pytest.mark.parametrize("family", ["Gemma", "Bert"])
def test_a_model_of_keras_hub_stays_one(family, tmp_path):
    keras.utils.set_random_seed(1)
    model = FAMILIES[family]()
    x = samples(model)
    result = km.compress(model, km.Factorize(0.25), verbose=0)
    wanted, size = low_rank(model, 0.25)
    small = result.model
    assert isinstance(small, type(model))
    assert small.count_params() == size < 0.6 * model.count_params()
    assert apart(called(small, x), called(wanted, x)) < 1e-4
    np.savez(tmp_path / "x.npz", **x)
    result.save(tmp_path / "a.keras")
    with new_interpreter():
        command = [sys.executable, "-c", OPENED, "x.npz", "a.keras", "y.npy"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "y.npy")
    np.testing.assert_allclose(found, called(small, x)[0], rtol=1e-5, atol=1e-6)
    if family == "Gemma":
        for now, then in zip(generated(small, x), generated(wanted, x), strict=True):
            np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("scheme", [None, "int8"])
def test_lora_is_added_to_the_product(scheme, tmp_path):
    keras.utils.set_random_seed(1)
    model = FAMILIES["Gemma"]()
    x = samples(model)
    steps = [km.Factorize(0.25), *([km.Quantize(scheme)] if scheme else [])]
    small = km.compress(model, steps, verbose=0).model
    before = to_numpy(small(x))
    small.backbone.enable_lora(2)
    np.testing.assert_allclose(to_numpy(small(x)), before, rtol=1e-3, atol=1e-4)
    names = sorted(v.path for v in small.trainable_weights)
    assert {name.rpartition("/")[2] for name in names} == {
        "lora_kernel_a",
        "lora_kernel_b",
    }
    frozen = [np.array(to_numpy(w)) for w in small.non_trainable_weights]
    small.compile(km.optimizers.Adam8bit(0.01), "mse", **PLAIN)
    y = targets(small, x)
    losses = [float(small.train_on_batch(x, y)) for _ in range(3)]
    assert losses[-1] < losses[0]
    for weight, value in zip(small.non_trainable_weights, frozen, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)
    after = to_numpy(small(x))
    assert np.abs(after - before).max() > 1e-3
    km.save_model(small, tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras", compile=False)
    np.testing.assert_allclose(to_numpy(again(x)), after, rtol=1e-5, atol=1e-6)
    assert sorted(v.path for v in again.trainable_weights) == names


@pytest.mark.one_backend
def test_a_preset_has_factors_in_its_backbone(tmp_path):
    import keras_hub

    keras.utils.set_random_seed(1)
    model = FAMILIES["Gemma"]()
    x = samples(model)
    result = km.compress(model, [km.Factorize(0.25), km.Quantize("int8")], verbose=0)
    result.save(tmp_path / "small")
    again = keras_hub.models.GemmaCausalLM.from_preset(str(tmp_path / "small"))
    assert apart(called(again, x), called(result.model, x)) < 1e-6
    task = km.compress(FAMILIES["Bert"](), km.Factorize(0.25), verbose=0)
    with pytest.raises(ConfigError, match="layer 'logits' is outside of the backbone"):
        task.save(tmp_path / "task")


@pytest.mark.one_backend
def test_what_cannot_have_factors_is_left_alone_or_refused():
    model, _ = parts()
    of_codes = km.compress(model, km.Quantize("int8", exclude="head"), verbose=0)
    with pytest.raises(
        ModelError, match="inside of a quantized layer; factorize first"
    ):
        km.compress(of_codes.model, km.Factorize(0.5))
    small = km.compress(model, km.Factorize(0.5), verbose=0).model
    with pytest.raises(ModelError, match="Most frequent reason: is a factor already"):
        km.compress(small, km.Factorize(0.5))
    with pytest.raises(ModelError, match=r"product of factors.*Next: assign to .*and"):
        small.head.kernel.assign(np.ones((20, 10)))
    keras.utils.set_random_seed(1)
    writer = FAMILIES["Gemma"]()
    writer.backbone.enable_lora(2)
    own = km.Factorize(0.25, exclude="ffw_linear")
    result = km.compress(writer, own, verbose=0)
    reasons = {c.weight: c.detail for c in result.changes if not c.changed}
    kernels = [name for name in reasons if name.endswith("/kernel")]
    products = {name.split("/")[-2]: reasons[name] for name in kernels}
    assert products["ffw_linear"] == "is excluded"
    assert products["query"] == "has LoRA"


@pytest.mark.one_backend
def test_factors_that_do_not_fit_are_refused():
    model, _ = parts()
    small = km.compress(model, km.Factorize(0.5), verbose=0).model
    config = small.get_config()
    places = [*config["factors"]]
    one, other = (config["factors"][n] for n in places[:2])
    config["factors"][places[0]] = [one[0], other[1]]
    made = type(small).from_config(config)
    with pytest.raises(ModelError, match="do not fit its kernel.*before km.Factorize"):
        made(np.ones((1, 6, 12), "float32"))
