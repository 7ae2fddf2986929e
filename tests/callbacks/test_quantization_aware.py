"""Training that sees the rounding, and leaves no trace of it."""

import pkgutil

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.aware.awareness import Awareness
from kerasmem.compression.quantize.aware.places import places
from kerasmem.compression.quantize.aware.quantizers import MovingAverage
from kerasmem.compression.quantize.math import dequantize, quantize
from kerasmem.compression.quantize.repair.fold import fold_batch_norm
from kerasmem.compression.quantize.static.apply import integer_model
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.kernels import reduced_axes
from kerasmem.graph.layers import sublayers, weights
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L

BACKEND = keras.backend.backend()
JIT = {"tensorflow": [False, True], "jax": [True], "torch": [False]}[BACKEND]
X = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")


def network(dtype=None, seed=0):
    """Return a network with all that integers run as one."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8, 8, 3), name="picture")
    x = L.Conv2D(6, 3, use_bias=False, name="conv", dtype=dtype)(inputs)
    x = L.BatchNormalization(name="norm", dtype=dtype)(x)
    x = L.ReLU(name="relu", dtype=dtype)(x)
    y = L.Conv2D(6, 3, padding="same", name="side", dtype=dtype)(x)
    x = L.MaxPooling2D(name="pool", dtype=dtype)(x + y)
    x = L.Flatten(name="flat", dtype=dtype)(x)
    return keras.Model(inputs, L.Dense(4, name="head", dtype="float32")(x))


def nested():
    """Return a network with a model in it."""
    inner = keras.Sequential([keras.Input((8, 8, 3)), L.Conv2D(4, 3)], name="inner")
    layers = [inner, L.ReLU(), L.Flatten(), L.Dense(4), L.Dense(4)]
    return keras.Sequential([keras.Input((8, 8, 3)), *layers])


def compiled(model, jit=None, optimizer="sgd", loss="mse"):
    jit = JIT[-1] if jit is None else jit
    model.compile(optimizer, loss, jit_compile=jit)
    return model


def fit(model, *callbacks, **options):
    return model.fit(
        X,
        Y,
        **{"batch_size": 16, "verbose": 0, "shuffle": False, **options},
        callbacks=list(callbacks),
    )


def aware(scheme="int8", **options):
    choice = scheme if isinstance(scheme, km.Quantize) else km.Quantize(scheme)
    return km.callbacks.QuantizationAware(choice, **options)


def is_plain(model):
    """Return whether a model is as Keras makes them."""
    return (
        all(type(v) is keras.Variable for v in model.weights)
        and not any("call" in vars(layer) for layer in sublayers(model))
        and not any("_run_through_graph" in vars(layer) for layer in sublayers(model))
        and not {"make_test_function", "make_predict_function"} & set(vars(model))
        and len(model.variables)
        == len(type(model).from_config(model.get_config()).variables)
    )


SCHEMES = {
    "int8": km.Quantize("int8"),
    "tensor": km.Quantize("int8", granularity="tensor"),
    "affine": km.Quantize("int8", symmetric=False),
    "int4": km.Quantize("int4"),
    "groups": km.Quantize("int4", granularity="group", group_size=5),
    "bfloat16": km.Quantize("bfloat16"),
}


@pytest.mark.parametrize("jit", JIT)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_sees_what_compress_makes_of_the_weights(scheme, jit):
    choice = SCHEMES[scheme]
    model = compiled(network(), jit, keras.optimizers.SGD(0.0))
    loss = fit(model, aware(choice, freeze_batch_norm=0)).history["loss"][0]
    small = compiled(km.compress(model, choice).model, jit=JIT[0])
    assert loss == pytest.approx(small.evaluate(X, Y, verbose=0), rel=2e-5)
    plain = model.evaluate(X, Y, verbose=0)
    assert abs(plain - loss) > 1e-6
    assert is_plain(model)


@pytest.mark.parametrize("jit", JIT)
def test_a_kernel_that_its_layer_normalizes_stays_float(jit):
    """Its layer assigns it in the forward pass, what it makes of the float weights."""
    kind, kernels = KINDS["spectral_normalization"], []
    model = kind.make()
    x, start = kind.inputs(), model.get_weights()
    for callbacks in ([], [aware("int4")]):
        model.set_weights(start)
        compiled(model, jit, keras.optimizers.SGD(0.0))
        model.fit(x, np.ones((3, 4)), epochs=2, verbose=0, callbacks=callbacks)
        kernels.append(to_numpy(model.layers[-1].kernel))
    np.testing.assert_allclose(kernels[1], kernels[0], rtol=1e-6)
    model.set_weights(start)
    awareness = Awareness(model, km.Quantize("int4"), None, {})
    found = to_numpy(model(x, training=True))
    awareness.release()
    float_kernel = to_numpy(model.layers[-1].kernel)
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
    x, before = np.ones((3, 3), "float32"), to_numpy(model.layers[0].kernel)
    awareness = Awareness(model, km.Quantize("int8"), None, {})
    with pytest.raises(ModelError, match="stays float.*decaying/kernel.*exclude"):
        model(x, training=True)
    awareness.release()
    np.testing.assert_array_equal(to_numpy(model.layers[0].kernel), before)
    with pytest.raises(ModelError, match="stays float"):
        compiled(model, JIT[0]).fit(x, x[:, :2], verbose=0, callbacks=[aware()])


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_sees_them_too(dtype):
    model = compiled(network(dtype), optimizer=keras.optimizers.SGD(0.0))
    history = fit(model, aware("int4", freeze_batch_norm=0)).history
    small = compiled(km.compress(model, km.Quantize("int4")).model, jit=JIT[0])
    # One is rounded to half precision before, the other after batches are averaged.
    assert history["loss"][0] == pytest.approx(
        small.evaluate(X, Y, batch_size=16, verbose=0), rel=5e-3
    )
    fit(compiled(model), aware(activations=True), epochs=2)
    assert is_plain(model)


def test_dynamic_rounding_of_inputs_is_that_of_the_dynamic_scheme():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    loss = fit(model, aware("int8-dynamic", freeze_batch_norm=0)).history["loss"][0]
    small = compiled(km.compress(model, km.Quantize("int8-dynamic")).model, jit=JIT[0])
    assert loss == pytest.approx(small.evaluate(X, Y, verbose=0), rel=2e-5)
    assert is_plain(model)


@pytest.mark.parametrize("jit", JIT)
def test_float_weights_move_as_those_of_the_rounded_model_do(jit):
    choice, model, rounded = km.Quantize("int4"), network(), network()
    small = km.compress(model, choice).model
    for name in ("conv", "side", "head"):
        kernel = to_numpy(small.get_layer(name).kernel)
        rounded.get_layer(name).kernel.assign(kernel)
    moved = []
    for each, callbacks in ((rounded, []), (model, [aware(choice)])):
        before = [to_numpy(v) for v in each.trainable_weights]
        fit(compiled(each, jit), *callbacks, batch_size=32)
        pairs = zip(each.trainable_weights, before, strict=True)
        moved.append([to_numpy(v) - start for v, start in pairs])
    for expected, found in zip(*moved, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_places_are_where_integers_are():
    found = {at: (p.tensor, p.never_negative) for at, p in places(network()).items()}
    add = next(name for name in found.values() if name[0].startswith("add"))[0]
    assert found == {
        "picture": ("picture", False),
        "relu": ("relu", True),
        "side": ("side", False),
        "pool": (add, False),
        "head": ("head", False),
    }


def test_ranges_are_the_moving_average_of_what_the_layers_give():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    callback = aware(activations=True, decay=0.75, freeze_batch_norm=0)
    fit(model, callback)
    first, second = (
        (np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0)))
        for x in (X[:16], X[16:])
    )
    expected = [0.75 * a + 0.25 * b for a, b in zip(first, second, strict=True)]
    assert callback.ranges["picture"] == pytest.approx(expected, rel=1e-6)
    assert callback.ranges["relu"][0] == 0.0
    assert set(callback.ranges) == {p.tensor for p in places(model).values()}


def test_ranges_go_on_from_those_given():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    begin = {"picture": (-100.0, 50.0)}
    callback = aware(activations=True, decay=0.5, ranges=begin)
    fit(model, callback, batch_size=32)
    low = 0.5 * -100 + 0.5 * float(X.min())
    assert callback.ranges["picture"][0] == pytest.approx(low)


def test_validation_sees_the_rounding_and_moves_no_range():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    model.evaluate(X, Y, verbose=0)  # leaves a function that was traced without it
    callback = aware("int4", freeze_batch_norm=0)
    history = fit(model, callback, validation_data=(X, Y), batch_size=32).history
    assert history["val_loss"][0] == pytest.approx(history["loss"][0], rel=1e-5)
    assert model.evaluate(X, Y, verbose=0) != pytest.approx(history["loss"][0], 1e-3)
    ranges = []
    for options in ({}, {"validation_data": (100 * X, Y)}):
        callback = aware(activations=True, freeze_batch_norm=0)
        fit(model, callback, **options)
        ranges.append(callback.ranges)
    assert ranges[0] == ranges[1]


def moving_variance(model):
    return to_numpy(model.get_layer("norm").moving_variance)


def test_batch_norm_is_frozen_when_it_is_time():
    seen = []
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(moving_variance(model))
    )
    fit(model, aware(freeze_batch_norm=0.5), note, epochs=4)
    assert not np.array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[1], seen[3])
    fit(model, aware(freeze_batch_norm=1), note, epochs=1)
    assert not np.array_equal(seen[3], seen[4])


class Broken(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize("use", ["evaluate", "call", "save", "fit"])
def test_nothing_is_left_after_a_fit_that_was_broken_off(use, tmp_path):
    model = compiled(network())
    callback = aware("int4", activations=True, freeze_batch_norm=0)
    with pytest.raises(KeyboardInterrupt):
        fit(model, callback, Broken(), validation_data=(X, Y))
    uses = {
        "evaluate": lambda: model.evaluate(X, Y, verbose=0),
        "call": lambda: model(X, training=False),
        "fit": lambda: fit(model),
        "save": lambda: model.save(tmp_path / "m.keras"),
    }
    found = uses[use]()
    assert is_plain(model)
    if use == "call":
        expected = keras.models.clone_model(model)
        expected.set_weights(model.get_weights())
        np.testing.assert_allclose(
            to_numpy(found), to_numpy(expected(X, training=False)), atol=1e-5
        )


ROOM = "kerasmem.compression.quantize.aware"


@pytest.mark.parametrize(
    ("name", "works"),
    [
        (f"{ROOM}.activations.shadow", 1),
        (f"{ROOM}.weights._become_rounded", 2),
        (f"{ROOM}.awareness.normalize_floats", 0),
        (f"{ROOM}.awareness._rounds_inputs", 1),
        (f"{ROOM}.awareness.backends.shadow", 0),
        ("kerasmem.callbacks.quantization_aware.shadow", 2),
        ("kerasmem.callbacks.quantization_aware.Attachment", 0),
    ],
)
def test_nothing_is_left_where_it_could_not_begin(name, works, monkeypatch):
    """All but the first so many uses of a part fail."""
    model = compiled(nested(), JIT[0])
    callback = aware("int8-dynamic", activations=True)
    expected = model.evaluate(X, Y, verbose=0)
    done = []

    def fail(*args):
        done.append(args)
        if len(done) > works:
            raise RuntimeError("no more")
        return original(*args)

    module, _, part = name.rpartition(".")
    original = pkgutil.resolve_name(name)
    monkeypatch.setattr(pkgutil.resolve_name(module), part, fail)
    with pytest.raises(RuntimeError, match="no more"):
        fit(model, callback)
    assert len(done) == works + 1
    assert is_plain(model)
    assert is_plain(model.get_layer("inner"))
    monkeypatch.undo()
    assert model.evaluate(X, Y, verbose=0) == expected
    fit(model, callback)
    assert is_plain(model)


def test_a_checkpoint_in_the_middle_holds_floats_and_opens_in_plain_keras(tmp_path):
    model = compiled(network())
    path = tmp_path / "{epoch}.keras"
    saving = keras.callbacks.ModelCheckpoint(path)
    callback = aware("int4", activations=True)
    fit(model, callback, saving, epochs=2)
    for epoch in (1, 2):
        again = keras.models.load_model(tmp_path / f"{epoch}.keras")
        assert np.unique(to_numpy(again.get_layer("side").kernel)).size > 300
    for a, b in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    fit(again, aware("int4", activations=True, ranges=callback.ranges))
    assert is_plain(again)


@pytest.mark.parametrize("aware_first", [True, False])
def test_pruned_weights_stay_zero_in_any_order_of_callbacks(aware_first):
    model = compiled(network(), optimizer="adam")
    pruning = km.callbacks.Pruning(km.Prune(0.5, end=0.0))
    callbacks = [aware(activations=True), pruning]
    zeros = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: zeros.append(
            float((to_numpy(model.get_layer("side").kernel) == 0).mean())
        )
    )
    fit(model, *(callbacks if aware_first else callbacks[::-1]), note, epochs=3)
    assert zeros == [0.5] * 3
    assert is_plain(model)
    small = km.compress(model, km.Quantize("int8")).model
    assert (to_numpy(small.get_layer("side").kernel) == 0).mean() >= 0.5


def test_clusters_and_zeros_stay_what_they_are():
    steps = [km.Prune(0.5, include="kernel"), km.Cluster(8)]
    model = compiled(km.compress(network(), steps).model, optimizer="adam")
    before = to_numpy(model.get_layer("side").kernel)
    choice = km.Quantize("int8", granularity="tensor")
    with km.Cluster(8).preserved(model, model):
        fit(model, aware(choice), epochs=2)
    small = km.compress(model, choice).model
    for each in (model, small):
        kernel = to_numpy(each.get_layer("side").kernel)
        assert len(np.unique(kernel)) <= 8
        assert (kernel == 0).mean() >= 0.5
    assert not np.array_equal(before, to_numpy(model.get_layer("side").kernel))


def outputs(model, x):
    return to_numpy(keras.ops.cast(model(x, training=False), "float32"))


def rounded_by_itself(weight):
    """Return the int4 values of a weight, found by NumPy."""
    axes = tuple(sorted(reduced_axes(weight)))
    return dequantize(*quantize(to_numpy(weight.variable), axes, 4))


def check_each_weight_is_read_rounded(model, x):
    """Compare with the float model whose weights all are replaced, and all but one."""
    choice = km.Quantize("int4")
    awareness = Awareness(model, choice, None, {})
    found = outputs(model, x)
    awareness.release()
    changes = km.compress(model, choice).changes
    pairs = zip(weights(model), changes, strict=True)
    chosen = [weight for weight, change in pairs if change.changed]
    floats = [to_numpy(weight.variable) for weight in chosen]
    size = np.abs(found).max()
    for weight in chosen:
        weight.variable.assign(rounded_by_itself(weight))
    np.testing.assert_allclose(outputs(model, x), found, rtol=1e-4, atol=1e-5 * size)
    for weight, values in zip(chosen, floats, strict=True):
        now = to_numpy(weight.variable)
        weight.variable.assign(values)
        far = np.abs(outputs(model, x) - found).max()
        assert far > 1e-3 * size, f"{weight.variable.path} is not read rounded"
        weight.variable.assign(now)


@pytest.mark.parametrize("name", KINDS)
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
def test_models_of_every_kind_train(name):
    kind = KINDS[name]
    model = kind.make()
    x = kind.inputs()
    y = np.zeros(model(x).shape, "float32")
    compiled(model, JIT[0], "adam")
    has_graph = name != "subclassed"
    callback = aware("int8", activations=has_graph)
    before = [to_numpy(v) for v in model.trainable_weights]
    history = model.fit(x, y, epochs=2, verbose=0, callbacks=[callback]).history
    assert np.isfinite(history["loss"]).all()
    moved = [
        not np.array_equal(a, to_numpy(b))
        for a, b in zip(before, model.trainable_weights, strict=True)
    ]
    assert sum(moved) >= len(moved) - 1  # a bias may have no part in it
    assert all(type(v) is keras.Variable for v in model.weights)
    assert bool(callback.ranges) == has_graph
    small = km.compress(model, km.Quantize("int8")).model
    assert np.isfinite(to_numpy(small(x))).all()


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


@pytest.mark.parametrize("jit", JIT)
def test_one_model_with_all_that_tfmot_refuses(jit):
    model = everything_tfmot_refuses()
    x = np.random.default_rng(0).integers(1, 12, (16, 10)).astype("int32")
    y = np.random.default_rng(1).normal(size=(16, 2))
    small = compiled(km.compress(model, km.Quantize("int4")).model, JIT[0])
    compiled(model, jit, keras.optimizers.SGD(0.0))
    seen = model.fit(x, y, verbose=0, callbacks=[aware("int4")]).history["loss"][0]
    assert seen == pytest.approx(small.evaluate(x, y, verbose=0), rel=2e-5)
    compiled(model, jit, "adam")
    callback = aware(activations=True)
    losses = model.fit(x, y, epochs=3, verbose=0, callbacks=[callback]).history["loss"]
    assert losses[-1] < losses[0]
    assert "inner/conv1d" in str(sorted(callback.ranges))
    assert any(name.startswith("inner:1/") for name in callback.ranges)


def test_the_forward_pass_rounds_what_it_gives():
    model = network()
    awareness = Awareness(model, km.Quantize("int8"), MovingAverage(), {})
    outputs = to_numpy(model(X, training=True))
    awareness.release()
    low, high = min(outputs.min(), 0), max(outputs.max(), 0)
    assert np.unique(outputs).size <= 256
    step = (high - low) / 255
    np.testing.assert_allclose(outputs / step, np.rint(outputs / step), atol=1e-2)
    assert is_plain(model)


def test_the_ranges_are_those_of_the_integer_model():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    callback = aware("int8-static", decay=0.0, freeze_batch_norm=0)
    seen = fit(model, callback, batch_size=32, validation_data=(X, Y)).history
    integers, _ = integer_model(fold_batch_norm(model)[0], callback.ranges)
    found = compiled(integers, JIT[0]).evaluate(X, Y, batch_size=32, verbose=0)
    plain = model.evaluate(X, Y, batch_size=32, verbose=0)
    assert abs(found - seen["val_loss"][0]) < 0.3 * abs(found - plain) + 1e-4
    alone = L.BatchNormalization(name="after")
    model = keras.Sequential([keras.Input((6, 6, 3)), L.Conv2D(4, 3, name="c"), alone])
    y = np.zeros((32, 4, 4, 4), "float32")
    callback = aware("int8-static")
    compiled(model).fit(X[:, :6, :6], y, verbose=0, callbacks=[callback])
    assert callback.ranges["c"] == callback.ranges["after"]


class TestErrors:
    def test_no_quantize(self):
        with pytest.raises(ConfigError, match="takes a Quantize.*'int8'"):
            km.callbacks.QuantizationAware("int8")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"decay": 1.0}, "decay .* at least 0 and below 1.*decay=1.0"),
            ({"freeze_batch_norm": 2}, "freeze_batch_norm .*from 0 to 1.*=2"),
        ],
    )
    def test_values_out_of_range(self, options, text):
        with pytest.raises(ConfigError, match=text):
            aware(**options)

    def test_a_model_that_is_not_built(self):
        model = compiled(keras.Sequential([L.Flatten(), L.Dense(4)]), JIT[0])
        if BACKEND == "tensorflow":  # others build it before any callback
            with pytest.raises(ModelError, match="no weights to round yet"):
                fit(model, aware())

    def test_activations_without_a_graph(self):
        model = compiled(KINDS["subclassed"].make(), JIT[0])
        x = KINDS["subclassed"].inputs()
        with pytest.raises(ModelError, match="not known.*activations=False"):
            model.fit(x, np.zeros((3, 3)), callbacks=[aware(activations=True)])

    def test_a_model_that_is_quantized_already(self):
        model = compiled(km.compress(network(), km.Quantize()).model, JIT[0])
        with pytest.raises(ModelError, match="nothing to quantize"):
            fit(model, aware())
