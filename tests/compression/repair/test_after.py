"""What data tells about quantized layers, and what it mends: against NumPy."""

import re
import warnings

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize import Quantize, repair
from kerasmem.compression.quantize.on_data import passes
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, DataError, KerasMemWarning
from kerasmem.graph.clone import clone
from kerasmem.graph.observe import observe
from kerasmem.graph.values import to_numpy
from tests.compression.repair.test_fold_batch_norm import outputs
from tests.graph.channels.strategies import randomize
from tests.models import KINDS, Experts, L, Subclassed, chain, in_place


def data(shape, count=70, seed=5):
    random = np.random.default_rng(seed)
    return (0.5 + random.normal(size=(count, *shape))).astype("float32")


def decibels(exact, rounded):
    noise = np.square(exact.astype("float64") - rounded).sum()
    return 10 * np.log10(np.square(exact.astype("float64")).sum() / noise)


def dense_net():
    model = chain(
        (6,), L.Dense(8, activation="relu", name="first"), L.Dense(3, name="second")
    )
    randomize(model)
    return model


def test_what_a_layer_loses_on_data_is_what_numpy_says():
    model, x = dense_net(), data((6,))
    w1, b1, w2, b2 = model.get_weights()
    small = clone(model)
    changes = in_place(Quantize("int4"), small, (x, x))
    k1, k2 = (to_numpy(small.get_layer(n).kernel) for n in ("first", "second"))
    hidden = np.maximum(x @ w1 + b1, 0)
    expected = {
        "first/kernel": decibels(hidden, np.maximum(x @ k1 + b1, 0)),
        "second/kernel": decibels(hidden @ w2 + b2, hidden @ k2 + b2),
    }
    found = {c.weight: c.output_sqnr_db for c in changes if c.changed}
    assert found == pytest.approx(expected, rel=1e-4)
    assert all(
        c.output_sqnr_db is None for c in in_place(Quantize("int4"), dense_net())
    )
    rows = km.compress(model, Quantize("int4"), data=x).changes
    assert {c.weight: c.output_sqnr_db for c in rows if c.changed} == found


def parts():
    return [
        L.Embedding(11, 6, name="table"),
        L.MultiHeadAttention(2, 3, name="attention"),
        Experts(3, 8, name="experts"),
        L.Dense(4, name="head"),
    ]


def forward(layers, ids):
    table, attention, experts, head = layers
    seen = table(ids)
    return head(keras.ops.mean(experts(attention(seen, seen)), 1))


def readable(**kwargs):
    ids = keras.Input((5,), dtype="int32")
    return keras.Model(ids, forward(parts(), ids), **kwargs)


@keras.saving.register_keras_serializable("tests")
class Called(keras.Model):
    """The same net without a graph."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = parts()

    def call(self, ids):
        return forward(self.parts, ids)


@keras.saving.register_keras_serializable("tests")
class Built(keras.Model):
    """The same net, which its constructor builds."""

    def __init__(self, **kwargs):
        ids = keras.Input((5,), dtype="int32")
        super().__init__(ids, forward(parts(), ids), **kwargs)

    def get_config(self):
        return {"name": self.name}


def kernels(model):
    """Return every kernel by its layer's name and its own, as plain arrays."""
    found = {}
    for name in ("query", "key", "value", "attention_output"):
        attention = model.get_layer("attention")
        dense = getattr(attention, f"{name.split('_')[-1]}_dense")
        found[name] = to_numpy(dense.kernel), to_numpy(dense.bias)
    experts, head = (model.get_layer(name) for name in ("experts", "head"))
    found["table"] = to_numpy(model.get_layer("table").embeddings)
    found["up"], found["down"] = to_numpy(experts.up), to_numpy(experts.down)
    found["router"] = to_numpy(experts.router.kernel), to_numpy(experts.router.bias)
    found["head"] = to_numpy(head.kernel), to_numpy(head.bias)
    return found


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def net_in_numpy(exact, rounded, ids):
    """Return what each layer makes of what exact ones give it, exact and rounded."""
    made = {}

    def both(name, run):
        made[name] = run(exact), run(rounded)
        return made[name][0]

    def dense(name, equation, x):
        return both(name, lambda w: np.einsum(equation, x, w[name][0]) + w[name][1])

    x = both("table/embeddings", lambda w: w["table"][ids])
    query, key, value = (
        dense(name, "btc,chd->bthd", x) for name in ("query", "key", "value")
    )
    scores = softmax(np.einsum("bqhd,bkhd->bhqk", query, key) / 3**0.5)
    x = dense(
        "attention_output", "bthd,hdc->btc", np.einsum("bhqk,bkhd->bqhd", scores, value)
    )
    shares = both("router", lambda w: softmax(x @ w["router"][0] + w["router"][1]))

    def experts(w):
        hidden = np.maximum(np.einsum("btc,ech->ebth", x, w["up"]), 0)
        return np.einsum("ebth,ehc,bte->btc", hidden, w["down"], shares)

    x = both("experts/up", experts)
    made["experts/down"] = made["experts/up"]
    dense("head", "bc,cd->bd", x.mean(1))
    return made


def test_each_layer_of_any_model_is_measured_by_itself():
    models = readable(), Called(), Built()
    ids = np.random.default_rng(0).integers(0, 11, (70, 5)).astype("int32")
    models[1](ids)
    randomize(models[0])
    exact = kernels(models[0])
    by_path = {key(w.path): to_numpy(w) for w in models[0].weights}
    found = []
    for model in models:
        for weight in model.weights:
            weight.assign(by_path[key(weight.path)])
        changes = in_place(Quantize("int4"), model, ids)
        found.append({key(c.weight): c.output_sqnr_db for c in changes if c.changed})
    made = net_in_numpy(exact, kernels(models[0]), ids)
    expected = {
        name if "/" in name else f"{name}/kernel": decibels(*pair)
        for name, pair in made.items()
    }
    assert all(each == pytest.approx(expected, rel=1e-3) for each in found)
    assert len(set(expected.values())) == len(expected) - 1, "two are of one layer"


def key(path):
    """Return the last two names of a weight's path, without numbers."""
    name = "/".join(path.split("/")[-2:])
    return re.sub(r"dense(_\d+)?/", "router/", name)


@keras.saving.register_keras_serializable("tests")
class MapsAndReads(L.Layer):
    """A layer that maps one of its parts, and of another reads the kernel."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table, self.read = L.Embedding(9, 4, name="table"), L.Dense(4, name="read")

    def build(self, shape):
        self.table.build(shape[1:])
        self.read.build((*shape, 4))

    def call(self, x):
        x = keras.ops.vectorized_map(self.table, x)
        return keras.ops.matmul(x, self.read.kernel)


@keras.saving.register_keras_serializable("tests")
class ModelReads(keras.Model):
    """The same in a model."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.read = L.Dense(4, name="first"), L.Dense(4, name="read")

    def build(self, shape):
        self.first.build(shape)
        self.read.build(shape)

    def call(self, x):
        return keras.ops.matmul(self.first(x), self.read.kernel)


def test_a_layer_that_is_not_called_is_told_of_by_the_one_around_it():
    model = chain((3,), MapsAndReads(), dtype="int32")
    x = np.arange(18).reshape(6, 3).astype("int32") % 9
    randomize(model)
    exact = outputs(model, x)
    changes = in_place(Quantize("int4"), model, x)
    found = [c.output_sqnr_db for c in changes if c.changed]
    assert found == pytest.approx([decibels(exact, outputs(model, x))] * 2, rel=1e-3)


def test_a_model_does_not_stand_for_a_layer_that_is_not_called():
    model, x = ModelReads(), data((4,), 6)
    model(x)
    randomize(model)
    changes = in_place(Quantize("int4"), model, x)
    found = {key(c.weight): c.output_sqnr_db for c in changes if c.changed}
    assert found["read/kernel"] is None
    assert 5 < found["first/kernel"] < 60


@keras.saving.register_keras_serializable("tests")
class DenseAndMask(L.Dense):
    """One that returns the mask that it added, too."""

    def call(self, x):
        made = super().call(x)
        return made, keras.ops.full_like(made, -1e9)

    def compute_output_shape(self, shape):
        return (super().compute_output_shape(shape),) * 2


def test_of_several_outputs_the_worst_is_told_of():
    x, inputs = data((4,), 6), keras.Input((4,))
    model = keras.Model(inputs, DenseAndMask(3)(inputs)[0])
    randomize(model)
    exact = outputs(model, x)
    (change, _) = in_place(Quantize("int4"), model, x)
    expected = decibels(exact, outputs(model, x))
    assert change.output_sqnr_db == pytest.approx(expected, rel=1e-3)


def test_a_loop_over_steps_is_measured_as_a_whole():
    x = data((5, 4), 6)
    model = chain((5, 4), L.Bidirectional(L.LSTM(3), name="both"))
    randomize(model)
    exact = outputs(model, x)
    changes = in_place(Quantize("int4"), model, x)
    rounded = outputs(model, x)
    assert [c.output_sqnr_db for c in changes if c.changed] == pytest.approx(
        [decibels(exact[:, s], rounded[:, s]) for s in np.s_[:3, 3:] for _ in "kr"],
        rel=1e-3,
    )


class Batches(keras.utils.PyDataset):
    """Four batches of 50 samples, without labels."""

    def __init__(self):
        super().__init__()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return (data((6,), 50, index),)


def test_at_most_so_many_samples_are_looked_at_in_batches(monkeypatch):
    sizes = []

    def observed(model, batches, layers, *, outputs):
        def counted(call):
            sizes.append(len(call.x))
            outputs(call)

        return observe(model, batches, layers, outputs=counted)

    monkeypatch.setattr(repair, "observe", observed)
    in_place(Quantize(), dense_net(), data((6,), 200))
    assert sizes == [size for size in (32, 32, 32, 32) for _ in range(2)]
    sizes.clear()
    in_place(Quantize(), dense_net(), Batches())
    assert sizes == [size for size in (50, 50, 28) for _ in range(2)]
    sizes.clear()
    # The smaller layer makes 3 numbers of a sample.
    monkeypatch.setattr(repair, "_ENOUGH", 3 * 40)
    in_place(Quantize(), dense_net(), data((6,), 200))
    assert sizes == [size for size in (32, 32) for _ in range(2)]


def test_batches_are_so_small_that_what_layers_make_takes_little(monkeypatch):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None,), dtype="int32")
    x = L.Dense(1000)(L.Embedding(50, 4)(inputs))
    model = keras.Model(inputs, L.GlobalMaxPooling1D()(x))
    ids, most = np.ones((40, 100), "int32"), 100 * 1000 * 4
    monkeypatch.setattr(passes, "_BATCH_BYTES", 3 * most + most // 2)
    assert passes.batch_within(model, ids, 32) == 3
    assert passes.batch_within(model, ids, 2) == 2
    assert passes.batch_within(model, ids[:, :5], 32) == 32
    monkeypatch.setattr(passes, "_BATCH_BYTES", 1)
    assert passes.batch_within(model, ids, 32) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("recurrent", "attention", "time_distributed", "shared", "nested"),
        *("subclassed", "tied_embedding", "custom", "conv_lstm"),
    ],
)
def test_every_layer_with_a_quantized_weight_is_measured(name):
    kind = KINDS[name]
    model = kind.make()
    changes = in_place(Quantize("int8"), model, kind.inputs())
    seen = [c.output_sqnr_db for c in changes if c.changed]
    assert len(seen) == kind.kernels
    assert all(ratio is not None and 15 < ratio < 80 for ratio in seen)


LAYERS = {
    "dense": ((6,), lambda: L.Dense(5, activation="relu")),
    "conv1d": ((9, 3), lambda: L.Conv1D(4, 3, activation="tanh")),
    "conv2d": ((6, 6, 4), lambda: L.Conv2D(6, 3, groups=2)),
    "depthwise": ((6, 6, 3), lambda: L.DepthwiseConv2D(3, activation=L.ReLU())),
    "separable": ((6, 6, 3), lambda: L.SeparableConv2D(4, 3)),
    "transposed": ((4, 4, 3), lambda: L.Conv2DTranspose(4, 3)),
    "einsum": (
        (5, 6),
        lambda: L.EinsumDense("btc,chd->bthd", (5, 2, 3), bias_axes="h"),
    ),
}


def before_activation(layer, x):
    same = clone(keras.Sequential([keras.Input(x.shape[1:]), layer]))
    # Not `setattr`: on torch an activation may be a module, which only one replaces.
    object.__setattr__(same.layers[-1], "activation", keras.activations.linear)
    return outputs(same, x).astype("float64")


@pytest.mark.parametrize("name", LAYERS)
def test_corrected_biases_leave_no_mean_error(name):
    shape, make = LAYERS[name]
    model, x = chain(shape, make()), data(shape)
    randomize(model)
    small = clone(model)
    changes = in_place(Quantize("int4", bias_correction=True), small, x)
    told = {c.weight.rpartition("/")[2]: c for c in changes}
    assert told["bias"].changed
    assert told["bias"].detail.startswith("corrected by up to")
    bias = to_numpy(model.layers[-1].bias)
    shift = to_numpy(small.layers[-1].bias) - bias
    only_rounded = clone(model)
    in_place(Quantize("int4"), only_rounded)
    exact = before_activation(model.layers[-1], x)
    off = exact - before_activation(only_rounded.layers[-1], x)
    axes = tuple(
        a for a in range(off.ndim) if a != (2 if name == "einsum" else off.ndim - 1)
    )
    np.testing.assert_allclose(shift.ravel(), off.mean(axes), rtol=1e-3, atol=1e-5)
    assert np.abs(shift).max() > 1e-4
    plain = in_place(Quantize("int4"), clone(model), x)
    better = told["kernel" if "kernel" in told else "pointwise_kernel"].output_sqnr_db
    assert better > min(c.output_sqnr_db for c in plain if c.changed)


def test_biases_are_corrected_within_subclassed_models():
    model, x = Subclassed(), np.arange(320).reshape(64, 5) * 7 % 11
    model(x)
    small = clone(model)
    changes = in_place(Quantize("int4", bias_correction=True), small, x)
    biases = {c.weight: c for c in changes if c.weight.endswith("bias")}
    lstm, head = biases.values()
    assert not lstm.changed
    assert head.detail.startswith("corrected by up to")
    given = model.lstm(model.embedding(x))
    means = [to_numpy(each.head(given)).mean(0) for each in (model, small)]
    np.testing.assert_allclose(*means, atol=1e-5)


def test_biases_are_corrected_within_layers_made_of_layers():
    inputs = keras.Input((5, 6))
    attended = L.MultiHeadAttention(2, 3, name="attention")(inputs, inputs)
    model = keras.Model(inputs, L.TimeDistributed(L.Dense(2))(attended))
    changes = in_place(Quantize("int4", bias_correction=True), model, data((5, 6)))
    biases = [c for c in changes if c.weight.endswith("bias")]
    assert [c.changed for c in biases if c.layer == "attention"] == [True] * 4


def test_in_static_int8_corrected_biases_leave_less_of_a_mean_error():
    model, x = chain((6,), L.Dense(40)), data((6,), 128)
    randomize(model)
    kernel = to_numpy(model.layers[-1].kernel)
    kernel[0, 0] = 30.0  # so that one scale for all is coarse
    model.layers[-1].kernel.assign(kernel)
    exact = outputs(model, x)

    def mean_error(corrected):
        choice = Quantize(
            "int8-static", granularity="tensor", bias_correction=corrected
        )
        made, _ = apply_technique(choice, model, Context(x))
        return np.abs((outputs(made, x) - exact).mean(0))[1:].mean()

    assert mean_error(corrected=True) < 0.5 * mean_error(corrected=False)
    np.testing.assert_array_equal(outputs(model, x), exact)


def test_in_static_int8_outputs_are_compared_with_those_of_the_float_model():
    model = chain(
        (6, 6, 2), L.Conv2D(3, 3, name="conv"), L.BatchNormalization(), L.ReLU(),
        L.Flatten(), L.Dense(4, name="head"),
    )  # fmt: skip
    randomize(model)
    x = data((6, 6, 2), 60)
    made, changes = apply_technique(Quantize("int8-static"), model, Context(x))
    exact = outputs(model, x)
    expected = decibels(exact, outputs(made, x))
    found = {c.weight: c.output_sqnr_db for c in changes if c.technique == "quantize"}
    assert found["head/kernel"] == pytest.approx(expected, rel=1e-3)
    after_relu = keras.Model(model.inputs, model.get_layer(index=3).output)
    relu = f"{model.layers[3].name}_fake_quantize"
    rounded = keras.Model(made.inputs, made.get_layer(relu).output)
    assert found["conv/kernel"] == pytest.approx(
        decibels(outputs(after_relu, x), outputs(rounded, x)), rel=1e-3
    )
    assert expected > 20


def test_what_cannot_be_corrected_is_left_alone():
    model = chain((5, 8), L.Dense(4, use_bias=False), L.LSTM(3), L.Dense(2))
    x = data((5, 8), 8)
    changes = in_place(Quantize(bias_correction=True), model, x)
    biases = {c.layer: c.changed for c in changes if c.weight.endswith("bias")}
    assert list(biases.values()) == [False, True]


def test_without_a_bias_the_correction_is_a_warning():
    model = chain((5,), L.Dense(4, use_bias=False))
    config = Quantize(bias_correction=True)
    with pytest.warns(KerasMemWarning, match="no quantized layer has a bias.*Next: "):
        changes = in_place(config, model, data((5,)))
    assert [change.changed for change in changes] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error", KerasMemWarning)
        in_place(config, chain((5,), L.Dense(4)), data((5,)))


def test_a_corrected_model_is_saved_and_the_choice_too(tmp_path):
    model, x = dense_net(), data((6,))
    choice = km.Quantize("int8", bias_correction=True)
    result = km.compress(model, choice, data=x)
    result.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(outputs(again, x), outputs(result.model, x))
    assert choice.to_json()["bias_correction"] is True
    x_mean = outputs(model, x).mean(0)
    np.testing.assert_allclose(outputs(result.model, x).mean(0), x_mean, atol=1e-3)


def test_a_kernel_of_zeros_has_no_ratio_and_no_correction():
    model = chain((4,), L.Dense(3, kernel_initializer="zeros"))
    changes = in_place(Quantize(bias_correction=True), model, data((4,)))
    assert changes[0].output_sqnr_db is None
    assert outputs(model, data((4,))).tolist() == [[0.0] * 3] * 70


def test_in_mixed_precision_it_is_measured_too():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = chain((6,), L.Dense(8, activation="relu"), L.Dense(3))
    finally:
        keras.config.set_dtype_policy("float32")
    changes = in_place(Quantize("int4", bias_correction=True), model, data((6,)))
    assert all(5 < c.output_sqnr_db < 60 for c in changes if "kernel" in c.weight)


def test_bad_data_and_bad_choices_are_errors():
    with pytest.raises(
        ConfigError, match="correction needs samples. Received.* Next: pass data=x"
    ):
        in_place(Quantize(bias_correction=True), dense_net())
    with pytest.raises(
        ConfigError, match="bias_correction` of Quantize must be one of"
    ):
        Quantize(bias_correction="yes")
    x = data((6,))
    x[3, 2] = np.nan
    for corrected in (False, True):
        # As it is, though it leaves a call of Keras, which makes a page of others.
        with pytest.raises(DataError, match=r"^The layer 'first' outputs NaN or .*\.$"):
            in_place(Quantize(bias_correction=corrected), dense_net(), x)
    with pytest.raises(DataError):
        in_place(Quantize(), dense_net(), data((7,)))
    with pytest.raises(DataError, match="can be read only once"):
        in_place(Quantize(), dense_net(), (data((6,)) for _ in range(2)))
