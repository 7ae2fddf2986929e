"""Sensitivity: how far outputs go when one layer is rounded, against SciPy by hand."""

from contextlib import contextmanager

import keras
import numpy as np
import pytest
from scipy.special import rel_entr, softmax

import kerasmem as km
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.mixed import mixed_plan
from kerasmem.compression.quantize.on_data import sensitivity
from kerasmem.compression.quantize.on_data.sensitivity import Sensitivity
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.graph.divergence import probe
from kerasmem.graph.outputs import describe_outputs
from kerasmem.graph.values import nbytes, to_numpy
from tests.compression.repair.test_fold_batch_norm import outputs

L = keras.layers
WIDTH, CLASSES = 6, 5


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(9, "relu", name="first"), L.Dense(CLASSES)

    def call(self, x):
        return self.second(self.first(x))


def network(kind="flat"):
    """A net and its layers with kernels, which is to answer with logits."""
    keras.utils.set_random_seed(4)
    if kind == "subclassed":
        model = Subclassed()
        model(np.zeros((1, WIDTH), "float32"))
        return model, [model.second, model.first]
    x = inputs = keras.Input((WIDTH,))
    layers = [L.Dense(9, "relu", name=f"dense_{i}") for i in range(3)]
    if kind == "nested":
        inner = keras.Sequential([keras.Input((WIDTH,)), *layers])
        x = inner(x)
    else:
        for layer in layers:
            x = layer(x)
    layers.append(L.Dense(CLASSES, name="end"))
    return keras.Model(inputs, layers[-1](x)), layers[::-1]


def changer(layers):
    """Return what changes the kernel of a layer, by some of its entries."""

    @contextmanager
    def changed(number):
        kernel = layers[number].kernel
        before = to_numpy(kernel)
        kernel.assign(np.round(4 * before) / 4)
        yield
        kernel.assign(before)

    return changed


def divergences(model, layers, data):
    """Return the divergence for each layer, changed on its own."""
    whole, change, found = Sensitivity(model, data), changer(layers), []
    for number in range(len(layers)):
        with change(number):
            found.append(whole.divergence())
    return np.array(found)


def by_hand(model, layers, x, weight=None):
    """Return the mean divergence for each layer, of as many whole forward passes."""
    exact = softmax(outputs(model, x).astype(np.float64), axis=-1)
    found = []
    for number in range(len(layers)):
        with changer(layers)(number):
            other = softmax(outputs(model, x).astype(np.float64), axis=-1)
        lost = rel_entr(exact, other).sum(-1)
        found.append(np.average(lost, weights=weight))
    return found


@pytest.mark.parametrize("kind", ["flat", "nested", "subclassed"])
def test_divergence_of_each_layer_is_that_of_whole_passes(kind):
    model, layers = network(kind)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(1).normal(size=(40, WIDTH)).astype("float32")
    before = [to_numpy(weight) for weight in model.weights]
    found = divergences(model, layers, x)
    np.testing.assert_allclose(found, by_hand(model, layers, x), rtol=1e-3, atol=1e-7)
    assert found.min() > 1e-5
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)


ENDS = {
    "logits": (None, keras.losses.CategoricalCrossentropy(from_logits=True)),
    "classes": ("softmax", None),
    "yes or no": ("sigmoid", None),
    "logits of yes or no": (None, keras.losses.BinaryCrossentropy(from_logits=True)),
    "values": (None, "mse"),
}


@pytest.mark.parametrize("end", ENDS)
def test_curvatures_foretell_the_divergence_of_random_changes(end, monkeypatch):
    keras.utils.set_random_seed(4)
    activation, loss = ENDS[end]
    layers = [L.Dense(9, "tanh"), L.Dense(CLASSES, activation)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.trainable = False
    model.compile(loss=loss)
    monkeypatch.setattr(sensitivity, "_BATCHES", 128)  # more passes than by default
    rng = np.random.default_rng(1)
    x = rng.normal(size=(128, WIDTH)).astype("float32")
    kernels = [layer.kernel for layer in layers]
    found = Sensitivity(model, x).curvatures(kernels)
    monkeypatch.undo()
    whole = Sensitivity(model, x)
    for kernel, curvature in zip(kernels, found, strict=True):
        before, lost, foretold = to_numpy(kernel), 0.0, 0.0
        for _ in range(12):
            step = 0.02 * rng.normal(size=before.shape)
            kernel.assign(before + step)
            lost += whole.divergence()
            foretold += 0.5 * (curvature * step**2).sum()
        kernel.assign(before)
        assert lost > 1e-4
        assert foretold == pytest.approx(lost, rel=0.25)


@pytest.mark.one_backend
@pytest.mark.parametrize("end", ENDS)
def test_the_mean_square_of_probes_is_the_second_derivative(end):
    activation, loss = ENDS[end]
    model = keras.Sequential([keras.Input((WIDTH,)), L.Dense(3, activation)])
    (kind,) = describe_outputs(model, loss, np.zeros((1, 3)))
    rng, variance = np.random.default_rng(5), 0.7
    z = np.float32([0.3, -0.4, 0.9])
    y = {"softmax": softmax(z), "sigmoid": 1 / (1 + np.exp(-z))}.get(activation, z)
    many = np.broadcast_to(y, (40000, 3))
    found = probe(many, kind, variance, rng)
    p = {"logits": softmax(z), "logits of yes or no": 1 / (1 + np.exp(-z))}.get(end, y)
    wanted = {
        "logits": np.diag(p) - np.outer(p, p),
        "classes": np.diag(1 / p),
        "yes or no": np.diag(1 / (p * (1 - p))),
        "logits of yes or no": np.diag(p * (1 - p)),
        "values": np.eye(3) / variance,
    }[end]
    most = 0.02 * np.abs(wanted).max()
    np.testing.assert_allclose(found.T @ found / 40000, wanted, atol=most)


def test_curvatures_of_the_last_layer_are_those_of_its_formula():
    model, (end, *_) = network()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(1).normal(size=(24, WIDTH)).astype("float32")
    weight = np.arange(24) % 2.0  # every second sample does not count
    found = Sensitivity(model, (x, np.zeros(24), weight)).curvatures([end.kernel])[0]
    hidden = outputs(keras.Model(model.inputs, end.input), x) * weight[:, None]
    (kind,), rng = describe_outputs(model, model.loss, [0]), np.random.default_rng(0)
    batches = np.split(np.arange(24), 8)
    probes = [probe(outputs(model, x[rows]), kind, 1.0, rng) for rows in batches]
    gradients = [hidden[n].T @ own for n, own in zip(batches, probes, strict=True)]
    wanted = np.square(gradients).sum(0) / 12
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


class Counted(L.Dense):
    calls = 0

    def call(self, inputs):
        type(self).calls += 1
        return super().call(inputs)


@pytest.mark.one_backend
def test_the_number_of_passes_does_not_grow_with_the_layers():
    counts, x = [], np.random.default_rng(1).normal(size=(64, WIDTH)).astype("float32")
    for depth in (2, 9):
        hidden = [L.Dense(WIDTH, "relu") for _ in range(depth)]
        model = keras.Sequential([keras.Input((WIDTH,)), Counted(WIDTH), *hidden])
        Counted.calls = 0
        budget = km.Budget(sum(map(nbytes, model.weights)) // 2)
        mixed_plan(model, Quantize("mixed", budget=budget), x)
        counts.append(Counted.calls)
    # The float outputs, the gradients, up to 11 choices, and three calls of checks.
    assert max(counts) <= 1 + 8 + 11 + 3


def test_padded_places_tell_nothing():
    keras.utils.set_random_seed(4)
    table = L.Embedding(CLASSES, WIDTH, embeddings_initializer="normal")
    end = L.Dense(CLASSES, activation="softmax")
    ids = keras.Input((None,), dtype="int32")
    table.build(None)
    table.embeddings.assign(20 * to_numpy(table.embeddings))
    mixed = L.Conv1D(WIDTH, 3, padding="causal", name="mixed")
    model = keras.Model(ids, end(mixed(table(ids))))
    rng = np.random.default_rng(2)
    x = rng.integers(0, CLASSES, (6, 7))
    weight = (np.arange(7) < rng.integers(2, 7, (6, 1))).astype("float32")
    layers = [end, mixed]
    found = divergences(model, layers, (x, x, weight))
    exact = outputs(model, x).astype(np.float64)
    for number, have in enumerate(found):
        with changer(layers)(number):
            other = outputs(model, x).astype(np.float64)
        lost = rel_entr(exact, other).sum(-1)
        wanted = (lost * weight).sum() / weight.sum()
        assert have == pytest.approx(wanted, rel=1e-3)
        assert abs(wanted / lost.mean() - 1) > 0.005


@pytest.mark.parametrize("count", [40, 33])  # the last batch has one sample
def test_regression_is_judged_by_squared_error_over_the_variance(count):
    model, layers = network()
    model.compile(loss="mse")
    x = np.random.default_rng(1).normal(size=(count, WIDTH)).astype("float32")
    found = divergences(model, layers, x)
    exact = outputs(model, x)
    for number, have in enumerate(found):
        with changer(layers)(number):
            error = np.square(outputs(model, x) - exact).sum(-1)
        assert have == pytest.approx(error.mean() / (2 * exact.var()), rel=1e-3)


@pytest.mark.one_backend
def test_a_single_output_and_a_last_batch_of_one_sample_take_the_room_there_is():
    keras.utils.set_random_seed(4)
    body = [keras.Input((16,)), L.Dense(32, "relu"), L.Dense(32, "relu"), L.Dense(1)]
    model = keras.Sequential(body)
    model.layers[-1].kernel.assign(1000 * to_numpy(model.layers[-1].kernel))
    x = np.random.default_rng(1).normal(size=(33, 16)).astype("float32")
    config = km.Quantize("mixed", budget=km.Budget("40KiB"))
    made = km.compress(model, config, data=x).model
    assert set(schemes(made).values()) == {"float16"}


@pytest.mark.one_backend
def test_weights_on_a_grid_of_four_bits_stay_there():
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [keras.Input((16,)), *(L.Dense(32, "relu") for _ in range(3)), L.Dense(4)]
    )
    rng = np.random.default_rng(1)
    for layer in model.layers:
        codes = rng.integers(-7, 8, layer.kernel.shape)
        codes[0] = 7
        layer.kernel.assign(codes * 0.125)
    x = rng.normal(size=(64, 16)).astype("float32")
    config = km.Quantize("mixed", budget=km.Budget("4KiB"))
    made = km.compress(model, config, data=x).model
    assert set(schemes(made).values()) == {"int4"}
    np.testing.assert_allclose(outputs(made, x), outputs(model, x), rtol=1e-4)


def with_a_deaf_branch():
    """A net with a branch that counts nothing and is the harder one to round."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input((WIDTH,))
    heard, deaf = (L.Dense(16, name=name)(inputs) for name in ("heard", "deaf"))
    x = L.Concatenate()([heard, deaf * 1e-3])
    model = keras.Model(inputs, L.Dense(CLASSES, "softmax", name="end")(x))
    kernel = model.get_layer("heard").kernel
    values = to_numpy(kernel)
    steps = np.abs(values).max(0) / 7
    near = np.round(values / steps) * steps
    kernel.assign(near + 0.3 * (values - near))  # so that its weights lose little
    return model


def schemes(model):
    return {v.path.split("/")[-2]: v.coding.dtype for v in quantized_variables(model)}


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_bits_go_where_outputs_suffer_and_not_where_weights_do(rounding):
    model = with_a_deaf_branch()
    x = np.random.default_rng(1).normal(size=(64, WIDTH)).astype("float32")
    int4 = km.compress(model, km.Quantize("int4", granularity="channel")).model
    end = 4 * 32 * CLASSES - (32 * CLASSES // 2 + 4 * CLASSES)  # it stays float
    budget = sum(map(nbytes, int4.weights)) + end + WIDTH * 16 // 2
    choice = {"budget": km.Budget(budget), "exclude": "end", "granularity": "channel"}
    blind = km.compress(model, km.Quantize("mixed", **choice)).model
    assert schemes(blind)["deaf"] in ("int8", "float16")
    choice |= {"rounding": rounding}
    seeing = km.compress(model, km.Quantize("mixed", **choice), data=x)
    found = schemes(seeing.model)
    assert found["deaf"] in ("int3", "int4")
    assert found["heard"] in ("int8", "float16")
    assert sum(map(nbytes, seeing.model.weights)) <= budget
    exact, *both = (outputs(m, x) for m in (model, seeing.model, blind))
    lost = [rel_entr(exact, other).sum() for other in both]
    assert lost[0] < 0.5 * lost[1]
    told = [c.detail for c in seeing.changes if c.changed]
    assert all(("GPTQ" in detail) == (rounding == "gptq") for detail in told)


@pytest.mark.filterwarnings("ignore:.*without its loss and metrics")
def test_layers_inside_of_a_model_of_kerashub_get_schemes_of_their_own(tmp_path):
    import keras_hub

    keras.utils.set_random_seed(4)
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=30,
        num_layers=2,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=16,
        intermediate_dim=32,
    )
    model = keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)
    rows = np.random.default_rng(1).integers(0, 30, (8, 6))
    data = {"token_ids": rows, "padding_mask": np.ones_like(rows)}
    small = km.compress(model, km.Quantize("int4")).model
    budget = sum(map(nbytes, small.weights)) + 800
    choice = km.Quantize("mixed", budget=km.Budget(budget), rounding="gptq")
    result = km.compress(model, choice, data=data)
    found = [v.coding.dtype for v in quantized_variables(result.model)]
    assert len(set(found)) > 1
    result.save(tmp_path / "m.keras")
    again = km.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(to_numpy(again(data)), to_numpy(result.model(data)))
