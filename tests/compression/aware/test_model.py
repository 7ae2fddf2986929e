"""A model with fake quantization reads its weights as they will be stored."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.math import dequantize, quantize
from kerasmem.compression.recipe import apply_technique, preserve_technique
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.kernels import reduced_axes
from kerasmem.graph.layers import sublayers, weights
from kerasmem.graph.values import is_scale, to_numpy
from kerasmem.processes import run_in_child
from tests.compression.aware.nets import (
    BACKEND,
    JIT,
    X,
    Y,
    aware,
    compiled,
    fit,
    in_order,
    network,
    outputs,
    ranges,
)
from tests.models import KINDS, ORIGINS, L, from_origin

SCHEMES = {
    "int8": km.Quantize("int8"),
    "tensor": km.Quantize("int8", granularity="tensor"),
    "affine": km.Quantize("int8", symmetric=False),
    "int4": km.Quantize("int4"),
    "groups": km.Quantize("int4", granularity="group", group_size=5),
    "bfloat16": km.Quantize("bfloat16"),
}


@pytest.mark.parametrize(
    ("scheme", "jit"),
    [
        *((scheme, JIT[0]) for scheme in SCHEMES),
        *((scheme, jit) for jit in JIT[1:] for scheme in ("int8", "groups")),
    ],
)
def test_a_step_sees_what_compress_makes_of_the_weights(scheme, jit):
    choice = SCHEMES[scheme]
    model = compiled(network(), jit, keras.optimizers.SGD(0.0))
    before = model.get_weights()
    trained = aware(model, choice)
    frozen = km.callbacks.FreezeBatchNorm(0)
    loss = fit(trained, frozen).history["loss"][0]
    small = compiled(km.compress(trained, choice).model)
    assert loss == pytest.approx(small.evaluate(X, Y, verbose=0), rel=2e-5)
    assert abs(model.evaluate(X, Y, verbose=0) - loss) > 1e-6
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(type(v) is keras.Variable for v in model.weights)


def test_compress_stores_what_it_would_of_the_float_model():
    model, choice = compiled(network()), km.Quantize("int4", granularity="channel")
    trained = aware(model, choice)
    fit(trained)
    plain = km.dequantize(trained)
    assert list(map(type, plain.layers)) == list(map(type, model.layers))
    assert len(plain.weights) == len(model.weights)
    made = [km.compress(each, choice) for each in (trained, plain)]
    for a, b in zip(*(each.model.get_weights() for each in made), strict=True):
        np.testing.assert_array_equal(a, b)
    assert made[0].changes == made[1].changes


@pytest.mark.parametrize("jit", JIT)
def test_a_kernel_that_its_layer_normalizes_stays_float(jit):
    """Its layer assigns it in the forward pass, what it makes of the float weights."""
    kind, kernels = KINDS["spectral_normalization"], []
    model = kind.make()
    x = kind.inputs()
    for each in (model, aware(model, "int4")):
        compiled(each, jit, keras.optimizers.SGD(0.0))
        each.fit(x, np.ones((3, 4)), epochs=2, verbose=0)
        kernels.append(to_numpy(each.layers[-1].kernel))
    np.testing.assert_allclose(kernels[1], kernels[0], rtol=1e-6)
    rounded = aware(kind.make(), "int4")
    found = to_numpy(rounded(x, training=True))
    float_kernel = to_numpy(rounded.layers[-1].kernel)
    kernel = dequantize(*quantize(float_kernel, (0,), 4))
    np.testing.assert_allclose(found, x @ kernel, rtol=1e-5, atol=1e-6)
    assert np.abs(found - x @ float_kernel).max() > 1e-2


@keras.saving.register_keras_serializable("tests")
class Decaying(L.Dense):
    def call(self, x):
        self.kernel.assign(0.9 * self.kernel)
        return super().call(x)


def test_another_layer_that_assigns_its_kernel_is_refused():
    model = keras.Sequential([keras.Input((3,)), Decaying(2, name="decaying")])
    x = np.ones((3, 3), "float32")
    trained = aware(compiled(model))
    before = trained.get_weights()
    with pytest.raises(
        ModelError, match="cannot be assigned in a forward.*decaying/kernel.*exclude"
    ):
        trained(x, training=True)
    np.testing.assert_array_equal(before[0], trained.get_weights()[0])
    with pytest.raises(ModelError, match="cannot be assigned in a forward"):
        trained.fit(x, x[:, :2], verbose=0)
    trained.layers[0].kernel.assign(np.full((3, 2), 0.7))  # outside of a call it may
    np.testing.assert_allclose(trained.get_weights()[0], 0.7)


@keras.saving.register_keras_serializable("tests")
class SavesItself(L.Dense):
    """A layer that keeps its weights in a file under names of its own."""

    def save_own_variables(self, store):
        store["mine"], store["offset"] = self.kernel, self.bias

    def load_own_variables(self, store):
        self.kernel.assign(store["mine"])
        self.bias.assign(store["offset"])


def test_a_layer_that_saves_itself_saves_its_float_weights(tmp_path):
    model = keras.Sequential([keras.Input((6,)), SavesItself(5)])
    trained = aware(compiled(model), "int4")
    trained.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    for a, b in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_sees_them_too(dtype):
    model = compiled(network(dtype), optimizer=keras.optimizers.SGD(0.0))
    trained = aware(model, "int4")
    history = fit(trained, km.callbacks.FreezeBatchNorm(0)).history
    small = compiled(
        km.compress(model, km.Quantize("int4", granularity="channel")).model
    )
    # One is rounded to half precision before, the other after batches are averaged.
    assert history["loss"][0] == pytest.approx(
        small.evaluate(X, Y, batch_size=16, verbose=0), rel=5e-3
    )
    trained = aware(model, activations=True, learned_scales=True)
    fit(compiled(trained), epochs=2)
    assert all(np.isfinite(value).all() for value in trained.get_weights())
    assert {str(v.dtype) for v in trained.weights} == {"float32"}


def test_dynamic_rounding_of_inputs_is_that_of_the_dynamic_scheme():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    trained = aware(model, "int8-dynamic")
    loss = fit(trained, km.callbacks.FreezeBatchNorm(0)).history["loss"][0]
    small = compiled(km.compress(trained, km.Quantize("int8-dynamic")).model)
    assert loss == pytest.approx(small.evaluate(X, Y, verbose=0), rel=2e-5)
    np.testing.assert_allclose(outputs(trained, X), outputs(small, X), atol=1e-5)


@pytest.mark.parametrize("jit", JIT)
def test_float_weights_move_as_those_of_the_rounded_model_do(jit):
    choice, model, rounded = (
        km.Quantize("int4", granularity="channel"),
        network(),
        network(),
    )
    small = km.compress(model, choice).model
    for name in ("conv", "side", "head"):
        kernel = to_numpy(small.get_layer(name).kernel)
        rounded.get_layer(name).kernel.assign(kernel)
    moved = []
    for each in (rounded, aware(model, choice)):
        before = [to_numpy(v) for v in each.trainable_weights]
        fit(compiled(each, jit), batch_size=32)
        pairs = zip(each.trainable_weights, before, strict=True)
        moved.append([to_numpy(v) - start for v, start in pairs])
    for expected, found in zip(*moved, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(found, expected, atol=1e-6)


def forward(model, x):
    """Return what computes the outputs, traced as the model is now."""
    if BACKEND != "jax":
        return lambda: outputs(model, x)
    # It would compile every operation by itself.
    model.make_predict_function(force=True)
    return lambda: np.asarray(model.predict_on_batch(x), "float32")


def rounded_by_itself(weight):
    """Return the int4 values of a weight, found by NumPy."""
    axes = tuple(sorted(reduced_axes(weight)))
    return dequantize(*quantize(to_numpy(weight.variable), axes, 4))


def check_each_weight_is_read_rounded(model, x):
    """Compare with the float model whose weights all are replaced, and all but one."""
    choice = km.Quantize("int4", granularity="channel")
    found = forward(aware(model, choice), x)()
    outputs = forward(model, x)
    _, changes = apply_technique(choice, model)
    pairs = zip(weights(model), changes, strict=True)
    chosen = [weight for weight, change in pairs if change.changed]
    floats = [to_numpy(weight.variable) for weight in chosen]
    size = np.abs(found).max()
    for weight in chosen:
        weight.variable.assign(rounded_by_itself(weight))
    np.testing.assert_allclose(outputs(), found, rtol=1e-4, atol=1e-5 * size)
    for weight, values in zip(chosen, floats, strict=True):
        now = to_numpy(weight.variable)
        weight.variable.assign(values)
        far = np.abs(outputs() - found).max()
        assert far > 1e-3 * size, f"{weight.variable.path} is not read rounded"
        weight.variable.assign(now)


ALIKE = {
    *("einsum_dense", "conv1d", "conv3d", "depthwise_1d", "embedding_subclass"),
    *("bidirectional", "stacked_cells", "conv_lstm", "grouped_attention"),
}
"""Kinds whose weights a backend reads as those of another."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.one_backend) if n in ALIKE else n
        for n in KINDS
    ],
)
def test_every_kind_of_layer_reads_each_weight_rounded(name):
    keras.utils.set_random_seed(0)
    check_each_weight_is_read_rounded(KINDS[name].make(), KINDS[name].inputs())


@pytest.mark.parametrize(
    "name",
    [
        *("depthwise_2d", "recurrent", "tied_embedding", "time_distributed"),
        *("attention", "spectral_normalization", "shared", "custom", "subclassed"),
    ],
)
def test_models_of_every_kind_train(name, tmp_path):
    kind = KINDS[name]
    model = kind.make()
    x = kind.inputs()
    y = np.zeros(model(x).shape, "float32")
    has_graph = name != "subclassed"
    trained = aware(compiled(model, optimizer="adam"), activations=has_graph)
    before = [to_numpy(v) for v in trained.trainable_weights]
    history = trained.fit(x, y, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    moved = [
        not np.array_equal(a, to_numpy(b))
        for a, b in zip(before, trained.trainable_weights, strict=True)
    ]
    assert sum(moved) >= len(moved) - 1  # a bias may have no part in it
    assert bool(ranges(trained)) == has_graph
    expected = trained.predict(x, verbose=0)
    trained.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), expected)
    small = km.compress(again, km.Quantize("int8")).model
    assert np.isfinite(to_numpy(small(x))).all()
    plain = km.dequantize(trained)
    assert not any("kerasmem" in type(layer).__module__ for layer in sublayers(plain))
    floats = [v for v in trained.weights if not is_scale(v)]
    for a, b in zip(floats, plain.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


def everything_tfmot_refuses():
    inner = keras.Sequential(
        [keras.Input((10, 6)), L.Conv1D(6, 3, padding="same"), L.LayerNormalization()],
        name="inner",
    )
    inputs = keras.Input((10,), dtype="int32")
    x = L.Embedding(12, 6)(inputs)
    y = inner(x)
    y = L.Multiply()([y, inner(y)]) + y
    y = L.MultiHeadAttention(2, 3)(y, y)
    return keras.Model(inputs, L.Dense(2)(L.Bidirectional(L.LSTM(3))(x + y)))


def test_one_model_with_all_that_tfmot_refuses_reads_each_weight_rounded():
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).integers(1, 12, (16, 10)).astype("int32")
    model = everything_tfmot_refuses()
    check_each_weight_is_read_rounded(model, x)


def test_one_model_with_all_that_tfmot_refuses():
    model = everything_tfmot_refuses()
    x = np.random.default_rng(0).integers(1, 12, (16, 10)).astype("int32")
    y = np.random.default_rng(1).normal(size=(16, 2))
    small = compiled(
        km.compress(model, km.Quantize("int4", granularity="channel")).model
    )
    trained = compiled(aware(model, "int4"), JIT[-1], keras.optimizers.SGD(0.0))
    seen = trained.fit(x, y, verbose=0).history["loss"][0]
    assert seen == pytest.approx(small.evaluate(x, y, verbose=0), rel=2e-5)
    trained = compiled(aware(model, activations=True), optimizer="adam")
    losses = trained.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    found = ranges(trained)
    assert "inner/conv1d" in str(sorted(found))
    # Called in two places, the model has one range for both.
    inner = [name for name in found if name.startswith("inner/")]
    for name in inner:
        assert found[name] == found[f"inner:1{name.removeprefix('inner')}"]
    assert trained.get_layer("inner").layers[-1] is not None


def of_two_inputs():
    """Return a model of inputs by name, and samples."""
    inputs = {n: keras.Input((6,), name=n) for n in ("left", "right")}
    shared = L.Dense(5, activation="relu", name="shared")
    h = L.Concatenate(name="both")([shared(inputs["left"]), shared(inputs["right"])])
    model = keras.Model(inputs, {"out": L.Dense(2, name="out")(h)})
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    return model, {"left": x, "right": 2 * x}


@pytest.mark.parametrize("origin", ORIGINS)
def test_inputs_by_name_of_a_model_of_any_origin(origin):
    model, x = of_two_inputs()
    model = from_origin(model, origin)
    trained = compiled(aware(model, activations=True, decay=0.0))
    y = {"out": np.ones((8, 2), "float32")}
    trained.fit(x, y, batch_size=8, verbose=0)
    found = ranges(trained)
    assert found["right"] == pytest.approx([2 * end for end in found["left"]])
    assert found["shared:1"] != found["shared"]
    small = km.compress(trained, km.Quantize("int8")).model
    assert small(x)["out"].shape == (8, 2)
    assert list(km.dequantize(trained).input) == list(model.input)


def loaded_outputs(path):
    """Return what a saved model gives, in a process that only imports kerasmem."""
    model = keras.models.load_model(path)
    return np.asarray(model.predict(X, verbose=0)).tolist()


def test_a_file_opens_in_a_new_process(tmp_path):
    trained = aware(compiled(network()), activations=True, learned_scales=True)
    fit(trained)
    expected = trained.predict(X, verbose=0)
    path = tmp_path / "m.keras"
    km.save_model(trained, path)
    task = f"{__name__}:loaded_outputs"
    found = run_in_child(task, str(path), backend=BACKEND)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_clone_by_keras_computes_once_it_has_the_weights():
    trained = aware(compiled(network()), activations=True, learned_scales=True)
    fit(trained)
    copy = keras.models.clone_model(trained)
    copy.set_weights(trained.get_weights())
    np.testing.assert_array_equal(outputs(copy, X), outputs(trained, X))


@pytest.mark.parametrize("aware_first", [True, False])
def test_pruned_weights_stay_zero_in_any_order(aware_first):
    model = compiled(network(), optimizer="adam")
    pruning = km.callbacks.Pruning(km.Prune(0.5, end=0.0))
    if not aware_first:
        model = km.compress(model, km.Prune(0.5), data=X).model
    trained = aware(model, activations=True)
    zeros = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: zeros.append(
            float((to_numpy(trained.get_layer("side").kernel) == 0).mean())
        )
    )
    fit(trained, pruning, note, epochs=3)
    assert zeros == [0.5] * 3
    small = km.compress(trained, km.Quantize("int8")).model
    assert (to_numpy(small.get_layer("side").kernel) == 0).mean() >= 0.5


def test_clusters_and_zeros_stay_what_they_are():
    steps = [km.Prune(0.5, include="kernel"), km.Cluster(8)]
    with pytest.warns(KerasMemWarning, match="statistics of 1 BatchNormalization"):
        model = compiled(km.compress(network(), steps).model, optimizer="adam")
    before = to_numpy(model.get_layer("side").kernel)
    choice = km.Quantize("int8", granularity="tensor")
    trained = aware(model, choice)
    with preserve_technique(km.Cluster(8), trained, trained):
        fit(trained, epochs=2)
    small = km.compress(trained, choice).model
    for each in (trained, small):
        kernel = to_numpy(each.get_layer("side").kernel)
        assert len(np.unique(kernel)) <= 8
        assert (kernel == 0).mean() >= 0.5
    after = to_numpy(km.dequantize(trained).get_layer("side").kernel)
    assert not np.array_equal(before, after)


def test_adapters_train_on_a_kernel_that_is_read_rounded():
    model = in_order(L.Flatten(), L.Dense(4, name="head"))
    model.get_layer("head").enable_lora(2)
    trained = compiled(aware(model, "int4"), optimizer="adam")
    kernel = to_numpy(trained.get_layer("head")._kernel.origin)
    fit(trained)
    np.testing.assert_array_equal(
        kernel, to_numpy(trained.get_layer("head")._kernel.origin)
    )
    expected = outputs(trained, X)
    small = km.compress(trained, km.Quantize("int4", exclude="lora")).model
    assert small.get_layer("head").lora_enabled
    np.testing.assert_allclose(outputs(small, X), expected, rtol=1e-4, atol=1e-5)


def test_layers_of_a_remat_scope_are_made_anew_without_it():
    with keras.RematScope(mode="full"):
        again = L.Dense(4, name="again")
    fit(aware(compiled(in_order(L.Flatten(), again))))


class TestErrors:
    @pytest.mark.one_backend
    def test_a_scheme_that_is_chosen_afterwards(self):
        with pytest.raises(ConfigError, match="Next: .*another.*scheme='mixed'"):
            aware(network(), km.Quantize("mixed", budget=km.Budget("5KiB")))

    @pytest.mark.one_backend
    def test_no_quantize(self):
        with pytest.raises(ConfigError, match="must be a Quantize.*='int8'"):
            km.quantization_aware(network(), "int8")

    @pytest.mark.one_backend
    def test_no_model(self):
        with pytest.raises(ConfigError, match=r"must be a keras\.Model.*='m.keras'"):
            aware("m.keras")

    @pytest.mark.one_backend
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"decay": 1.0}, "decay. .* at least 0 and less than 1.*decay=1.0"),
            ({"decay": "0.9"}, "decay. .* a number.*decay='0.9'"),
            ({"decay": None}, "decay. .* a number.*decay=None"),
            ({"activations": "int8"}, "activations. .*True.*False.*='int8'"),
            (
                {"ranges": {"relu": (0, 1)}},
                "needs rounded activations.*activations=True.*=None",
            ),
            ({"ranges": [(0, 1)]}, "tensor names to pairs of ends.*Received: ranges="),
            ({"ranges": {"relu": 3}}, "lower and an upper end.*'relu'.*=3"),
            ({"ranges": {"relu": (1, -1)}}, r"lower and an upper.*=\(1, -1\)"),
            ({"ranges": {"relu": (0, float("nan"))}}, "both finite.*nan"),
            ({"ranges": {3: (0, 1)}}, r"tensor names to pairs.*\{3: \(0, 1\)\}"),
        ],
    )
    def test_values_out_of_range(self, options, text):
        with pytest.raises(ConfigError, match=text):
            aware(network(), **options)

    def test_a_model_that_is_not_built(self):
        model = compiled(keras.Sequential([L.Flatten(), L.Dense(4)]))
        with pytest.raises(ModelError, match="is not built. Next: call the model"):
            aware(model)

    def test_activations_without_a_graph(self):
        model = compiled(KINDS["subclassed"].make())
        with pytest.raises(
            ModelError, match="no graph.*not list its.*activations=False"
        ):
            aware(model, activations=True)

    def test_a_model_that_is_quantized_already(self):
        model = compiled(km.compress(network(), km.Quantize()).model)
        with pytest.raises(ModelError, match="nothing to quantize"):
            aware(model)

    def test_a_model_that_has_fake_quantization_already(self):
        with pytest.raises(
            ModelError, match="already.*Next: continue to train.*dequantize"
        ):
            aware(aware(network()))

    def test_a_model_that_computes_again(self):
        model = compiled(in_order(L.Flatten(), *(L.Dense(8) for _ in range(4))))
        with pytest.raises(
            ModelError, match="rematerialization.*pass the original model"
        ):
            aware(km.rematerialize(model, segments=2))


@pytest.mark.one_backend
def test_int4_trains_one_scale_per_channel_unless_groups_are_asked_for():
    model = keras.Sequential([keras.Input((256,)), L.Dense(4, name="wide")])
    for choice, scales in (({}, 4), ({"group_size": 64}, 16)):
        quantize = km.Quantize("int4", **choice)
        small = km.compress(km.quantization_aware(model, quantize), quantize)
        (change,) = [each for each in small.changes if each.changed]
        assert change.detail == f"int4 with {scales} scales"
    assert "one scale per channel" in km.quantization_aware.__doc__
