"""`km.estimate_memory`: figures against arithmetic by hand, and clear errors."""

import json
import warnings

import keras
import pytest
from keras import layers

import kerasmem as km
from kerasmem.errors import ConfigError, InputError, ModelError
from kerasmem.memory.estimate import METHODS
from kerasmem.records import ESTIMATE_CATEGORIES, MemoryEstimate

UNITS, BATCH, DEPTH = 32, 200, 3
TENSOR = BATCH * UNITS * 4  # one layer's output
WEIGHTS = DEPTH * (UNITS * UNITS + UNITS) * 4
COUNTERS = {"tensorflow": 8 + 4, "jax": 4 + 4, "torch": 4 + 4}  # steps, learning rate


def chain(depth=DEPTH):
    inputs = x = keras.Input((UNITS,))
    for _ in range(depth):
        x = layers.Dense(UNITS, activation="relu")(x)
    return keras.Model(inputs, x)


def estimate(model=None, batch_size=BATCH, **options):
    options = {
        "optimizer": "sgd",
        "backend": "torch",
        "device": "cpu",
        "jit_compile": False,
        "method": "analytic",
    } | options
    return km.estimate_memory(model or chain(), batch_size, **options)


def test_torch_keeps_every_output_and_writes_nothing_in_place():
    found = estimate()
    # At the loss: the batch, three outputs and the probabilities kept, two gradients.
    assert found.by_category() == {
        "activation": 4 * TENSOR,
        "temporary": TENSOR,
        "workspace": TENSOR,
        "input": TENSOR,
        "parameter": WEIGHTS,
        "optimizer_state": COUNTERS["torch"],
    } | {k: v for k, v in found.by_category().items() if k == "rounding"}
    assert found.by_category().get("rounding", 0) == 0
    assert found.peak_bytes == WEIGHTS + COUNTERS["torch"] + 7 * TENSOR


def test_tensorflow_writes_over_what_nobody_needs():
    found = estimate(backend="tensorflow").by_category()
    # At the kernel gradient of the last layer: its output is gone, two are kept, the
    # gradient comes in where the loss was, and goes out in memory of its own beside
    # that of the bias.
    assert found["activation"] == 3 * TENSOR
    assert found["temporary"] == TENSOR
    assert found["input"] == TENSOR
    assert found["gradient"] == (UNITS * UNITS + UNITS) * 4
    assert found["parameter"] == WEIGHTS
    assert found["optimizer_state"] == COUNTERS["tensorflow"]


def test_adam_on_torch_makes_three_copies_of_all_variables_at_once():
    found = estimate(chain(), 1, optimizer="adam")
    grown = [size for size in found.by_category().items() if size[0] == "temporary"]
    assert grown == [("temporary", 3 * WEIGHTS)]
    assert found.by_category()["gradient"] == WEIGHTS
    assert found.by_category()["optimizer_state"] == 2 * WEIGHTS + COUNTERS["torch"]


def test_predict_on_torch_holds_every_layers_output_until_the_end():
    found = estimate(training=False)
    # The last relu writes beside its input; nothing is freed before the model returns.
    assert found.peak_bytes == WEIGHTS + (DEPTH + 2) * TENSOR
    assert "optimizer_state" not in found.by_category()


def test_every_byte_of_the_peak_has_a_category():
    for backend in ("tensorflow", "jax", "torch"):
        found = estimate(backend=backend, jit_compile=backend == "jax")
        parts = found.parts
        assert sum(part.nbytes for part in parts) == found.peak_bytes
        assert {part.category for part in parts} <= set(ESTIMATE_CATEGORIES)


def test_the_bytes_of_a_layer_are_listed_under_its_path():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(4, name="hidden"),
            layers.Dense(2, name="out"),
        ],
        name="small",
    )
    found = estimate(model, 1)
    own = {p.layer: p.nbytes for p in found.parts if p.category == "parameter"}
    assert own == {"small/hidden": 4 * (8 * 4 + 4), "small/out": 4 * (4 * 2 + 2)}


def test_half_precision_halves_the_activations_and_not_the_parameters():
    full, half = estimate(), estimate(dtype_policy="mixed_bfloat16")
    assert half.by_category()["parameter"] == full.by_category()["parameter"]
    # Three outputs are half as large; the batch and the two kernels through which a
    # gradient goes are kept as copies in half precision.
    copies = BATCH * UNITS * 2 + 2 * UNITS * UNITS * 2
    saved = full.by_category()["activation"] - half.by_category()["activation"]
    assert saved == 3 * TENSOR // 2 - copies
    all_half = estimate(dtype_policy="bfloat16")
    assert all_half.by_category()["parameter"] == WEIGHTS / 2


def test_a_policy_that_the_model_was_built_with_says_the_same_as_an_assumed_one():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    built = chain()
    keras.config.set_dtype_policy(before)
    assumed = estimate(dtype_policy="mixed_bfloat16")
    assert estimate(built).peak_bytes == assumed.peak_bytes


def test_a_shared_layer_counts_its_weights_once_and_its_gradient_once():
    shared = layers.Dense(UNITS)
    inputs = keras.Input((UNITS,))
    model = keras.Model(inputs, shared(shared(inputs)))
    found = estimate(model, 1).by_category()
    assert found["parameter"] == found["gradient"] == (UNITS * UNITS + UNITS) * 4


def test_a_nested_model_is_opened():
    inner = keras.Sequential([keras.Input((UNITS,)), layers.Dense(UNITS)])
    outer = keras.Sequential([keras.Input((UNITS,)), inner, layers.Dense(UNITS)])
    flat = keras.Sequential(
        [keras.Input((UNITS,)), layers.Dense(UNITS), layers.Dense(UNITS)]
    )
    assert estimate(outer).peak_bytes == estimate(flat).peak_bytes


class Scaled(layers.Layer):
    """A layer of the user's own, made of keras.ops."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        return keras.ops.multiply(keras.ops.relu(x), self.scale)


def test_a_custom_layer_is_opened_and_left_as_it_was():
    inputs = keras.Input((UNITS,))
    layer = Scaled()
    model = keras.Model(inputs, layer(layers.Dense(UNITS)(inputs)))
    calls = len(layer._inbound_nodes)
    found = estimate(model).by_category()
    # What relu keeps is what the product keeps.
    assert found["activation"] >= TENSOR
    assert len(layer._inbound_nodes) == calls


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("layer", [layers.Conv2D, layers.SeparableConv2D])
def test_channels_before_pixels_take_as_much_as_behind_them(layer, backend):
    shapes = {"channels_first": (3, 40, 30), "channels_last": (40, 30, 3)}
    first, last = (
        estimate(
            keras.Sequential([keras.Input(shape), layer(5, 3, data_format=name)]),
            backend=backend,
        )
        for name, shape in shapes.items()
    )
    assert first.peak_bytes == last.peak_bytes


class Opaque(layers.Layer):
    """A layer whose call cannot be run on symbols."""

    def call(self, x):
        return x * float(x[0, 0])

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def test_a_layer_that_cannot_be_read_widens_the_interval():
    inputs = keras.Input((UNITS,))
    model = keras.Model(inputs, Opaque()(layers.Dense(UNITS)(inputs)))
    with pytest.warns(
        km.errors.KerasMemWarning, match=r"assumes that unsupported layers.*Opaque"
    ):
        found = estimate(model)
    known = estimate(keras.Model(inputs, layers.Dense(UNITS)(inputs)))

    def width(found):
        return (found.high_bytes - found.peak_bytes) / found.peak_bytes

    assert width(found) > 1.5 * width(known)


@pytest.mark.one_backend
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("layer", "backend", "images"),
    [
        (layers.RandomFlip(), "tensorflow", 3),
        (layers.RandomFlip("horizontal"), "tensorflow", 2),
        (layers.RandomFlip(), "torch", 4),
        (layers.RandomFlip("horizontal"), "torch", 3),
        (layers.RandomTranslation(0.1, 0.1), "tensorflow", 2),
        (layers.RandomRotation(0.1), "torch", 9),
        (layers.RandomZoom(0.1), "tensorflow", 2),
        (layers.RandomContrast(0.1), "jax", 2),
        (layers.RandomBrightness(0.1), "jax", 2),
        (layers.RandomContrast(0.1), "torch", 3),
        (layers.RandomCrop(96, 96), "tensorflow", 2),
    ],
)
def test_random_images_count_as_traces_do(layer, backend, images):
    # Traces on a CPU, with parameters: 3.6, 2.3, 4.1, 3.1, 2.3, 9.1, 2.3, 2.3, 2.3,
    # 3.1 and 2.3 times the images.
    ends = [layers.Flatten(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((96, 96, 3)), layer, *ends])
    found = estimate(model, batch_size=32, backend=backend, optimizer="sgd")
    size = 32 * 96 * 96 * 3 * 4
    used = found.peak_bytes - found.by_category().get("parameter", 0)
    assert images <= used / size < images + 0.5
    still = estimate(model, batch_size=32, backend=backend, training=False)
    assert still.peak_bytes < found.peak_bytes


def test_a_tensor_converted_to_a_tensor_takes_nothing():
    inputs = keras.Input((UNITS,))
    converted = keras.ops.convert_to_tensor(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", km.errors.KerasMemWarning)
        found = estimate(keras.Model(inputs, layers.Dense(UNITS)(converted)))
    plain = estimate(keras.Model(inputs, layers.Dense(UNITS)(inputs)))
    assert found.peak_bytes == plain.peak_bytes


def test_open_lengths_can_be_given():
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, layers.Dense(4)(inputs))
    short, long = (estimate(model, input_shape=(n, 8)).peak_bytes for n in (5, 10))
    assert long > short
    named = estimate(model, input_shape={inputs.name: (10, 8)})
    assert named.peak_bytes == long


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_open_lengths_go_through_an_einsum_as_known_ones_do(backend):
    def layered(length):
        inputs = keras.Input((length, 8))
        x = layers.EinsumDense("abc,cde->abde", (None, 2, 3), "relu")(inputs)
        return keras.Model(inputs, layers.Dense(4)(x))

    given = {"backend": backend, "input_shape": (5, 8)}
    known, open_ = (estimate(layered(length), **given) for length in (5, None))
    assert open_.peak_bytes == known.peak_bytes


def test_json_brings_an_estimate_back():
    found = estimate()
    assert MemoryEstimate.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["method"] == "analytic"


def test_the_verdict_is_open_only_within_the_interval():
    found = estimate()
    assert found.verdict(found.high_bytes) == "fits"
    assert found.verdict(found.high_bytes - 1) == "too close to call"
    assert found.verdict(found.low_bytes) == "too close to call"
    assert found.verdict(found.low_bytes - 1) == "does not fit"
    assert found.verdict("1GiB") == "fits"


def test_the_table_names_categories_and_layers():
    text = estimate().table(layers=2)
    assert "estimated peak, training, batch of 200, torch (not compiled), cpu" in text
    assert "activation" in text
    assert "dense" in text


def test_the_model_and_its_optimizer_stay_as_they_are():
    model = chain()
    model.compile("adam", "mse", jit_compile=False)
    before = model.get_weights()
    km.estimate_memory(model, 4)
    assert not model.optimizer.built
    for old, new in zip(before, model.get_weights(), strict=True):
        assert (old == new).all()


def test_without_an_optimizer_the_compiled_one_counts():
    model = chain()
    model.compile("adam", "mse", jit_compile=False)
    by_name = estimate(model, optimizer="adam")
    assert estimate(model, optimizer=None).peak_bytes == by_name.peak_bytes


def lazy():
    return keras.Sequential([layers.Dense(2)])


def open_length():
    inputs = keras.Input((None, 8))
    return keras.Model(inputs, layers.Dense(4)(inputs))


def four_at_a_time():
    inputs = keras.Input(batch_shape=(4, 8))
    return keras.Model(inputs, layers.Dense(4)(inputs))


MEASURED = {"method": "measured"}


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (lazy, {}, ModelError, r"built model.*Received: model='.*', not built.*build"),
        (lambda: "resnet", {}, ConfigError, r"keras\.Model.*Received: model='resnet'"),
        (chain, {"batch_size": 0}, ConfigError, r"from 1.*Received: batch_size=0"),
        (chain, {"batch_size": 2.5}, ConfigError, r"Received: batch_size=2\.5"),
        (four_at_a_time, {"batch_size": 8}, ConfigError, r"Expected: 4\..*size=8"),
        (chain, {"training": "no"}, ConfigError, r"True, False.*training='no'"),
        (chain, {"jit_compile": 1}, ConfigError, r"Received: jit_compile=1"),
        (chain, {"backend": "numpy"}, ConfigError, r"tensorflow, jax, torch.*'numpy'"),
        (chain, {"device": "tpu"}, ConfigError, r"gpu, cpu.*Received: device='tpu'.$"),
        (chain, {"device": "h20"}, ConfigError, r"'h20'\. Did you mean 'h200'\?"),
        (chain, {"method": "guess"}, ConfigError, r"auto, analytic.*method='guess'"),
        (chain, MEASURED | {"device": "gpu"}, ConfigError, r"Received: device='gpu'"),
        (chain, MEASURED | {"device": "h200"}, ConfigError, r"Received: device='h200'"),
        (chain, {"optimizer": "adm"}, ConfigError, r"Received: optimizer='adm'"),
        (chain, {"optimizer": None}, ModelError, r"pass optimizer='adam'"),
        (chain, {"dtype_policy": "f32"}, ConfigError, r"Received: dtype_policy='f32'"),
        (open_length, {}, ModelError, r"of every axis.*None, 8\).*pass input_shape="),
        (open_length, {"input_shape": (0, 8)}, ConfigError, r"lengths from 1.*\(0, 8"),
        (open_length, {"input_shape": (-1, 8)}, ConfigError, r"lengths from 1.*-1"),
        (open_length, {"input_shape": 10}, ConfigError, r"Received: input_shape=10"),
        (open_length, {"input_shape": [(3, 8), (3, 8)]}, ConfigError, r"one per input"),
        (open_length, {"input_shape": (3, 9)}, ConfigError, r"\(None, 8\).*\(3, 9\)"),
        (open_length, {"input_shape": "3x8"}, ConfigError, r"input_shape='3x8'"),
    ],
)
def test_wrong_input_is_one_clear_error(make, options, error, text):
    options = {"batch_size": 4} | options
    with pytest.raises(error, match=f"(?s){text}") as raised:
        estimate(make(), **options)
    assert isinstance(raised.value, InputError)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(3)

    def build(self, shape):
        self.head.build(shape)

    def call(self, x):
        return self.head(x)


def test_a_model_without_a_graph_is_sent_to_another_method():
    model = Subclassed()
    model.build((None, 4))
    with pytest.raises(
        ModelError, match=r"without a graph\. Next: pass method='traced'"
    ):
        estimate(model, input_shape=(4,))


def test_methods_go_from_cheap_to_dear():
    assert tuple(METHODS) == ("analytic", "traced", "plan", "measured")
