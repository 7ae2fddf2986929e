"""Training that sees the rounding, and leaves no trace of it."""

import pickle
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
from kerasmem.compression.quantize.static import IntegerLayer
from kerasmem.compression.quantize.static.apply import integer_model
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
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


def compiled(model, jit=JIT[0], optimizer="sgd", loss="mse"):
    """Compile, without XLA where there is a choice: it takes longer than the test."""
    model.compile(optimizer, loss, jit_compile=jit)
    return model


def small_network():
    """Return one of each: weights, a BatchNormalization and a rectifier, in order."""
    inputs = keras.Input((8, 8, 3), name="picture")
    x = L.Conv2D(4, 3, strides=2, name="conv")(inputs)
    x = L.ReLU(name="relu")(L.BatchNormalization(name="norm")(x))
    return keras.Model(inputs, L.Dense(4, name="head")(L.Flatten(name="flat")(x)))


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
    loss = fit(model, aware(choice, freeze_batch_norm=0)).history["loss"][0]
    small = compiled(km.compress(model, choice).model)
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
        compiled(model).fit(x, x[:, :2], verbose=0, callbacks=[aware()])


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_sees_them_too(dtype):
    model = compiled(network(dtype), optimizer=keras.optimizers.SGD(0.0))
    history = fit(model, aware("int4", freeze_batch_norm=0)).history
    small = compiled(km.compress(model, km.Quantize("int4")).model)
    # One is rounded to half precision before, the other after batches are averaged.
    assert history["loss"][0] == pytest.approx(
        small.evaluate(X, Y, batch_size=16, verbose=0), rel=5e-3
    )
    fit(compiled(model), aware(activations=True), epochs=2)
    assert is_plain(model)


def test_dynamic_rounding_of_inputs_is_that_of_the_dynamic_scheme():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.0))
    loss = fit(model, aware("int8-dynamic", freeze_batch_norm=0)).history["loss"][0]
    small = compiled(km.compress(model, km.Quantize("int8-dynamic")).model)
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


def in_order(*layers, shape=(8, 8, 3)):
    return keras.Sequential([keras.Input(shape, name="picture"), *layers])


def called_in_training():
    inputs = keras.Input((8, 8, 3), name="picture")
    x = L.Conv2D(4, 3, name="c")(inputs)
    x = L.BatchNormalization(name="norm")(x, training=True)
    return keras.Model(inputs, x)


def sharing():
    inputs = keras.Input((8, 8, 3), name="picture")
    conv = L.Conv2D(3, 3, padding="same", name="c")
    x = L.BatchNormalization(name="norm")(conv(conv(inputs)))
    return keras.Model(inputs, x)


def taken_up_twice():
    norms = L.BatchNormalization(name="first"), L.BatchNormalization(name="norm")
    return in_order(L.Conv2D(4, 3, name="c"), *norms)


def without_reason_to_fold():
    """Return a model whose BatchNormalization is along another axis."""
    return in_order(L.Conv2D(4, 3, name="c"), L.BatchNormalization(1, name="norm"))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (called_in_training, {"c": None, "norm": None}),
        (sharing, {"c": None, "c:1": None, "norm": None}),
        (taken_up_twice, {"norm": "c"}),
        (without_reason_to_fold, {"c": None, "norm": None}),
    ],
)
def test_what_folding_takes_up_is_rounded_behind_it_and_no_other(make, expected):
    model = make()
    found = {at: place.folded for at, place in places(model).items()}
    assert found == {"picture": None, **expected}
    is_folded = fold_batch_norm(model)[0] is not model
    assert is_folded == ("c" in expected.values())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([L.GlobalAveragePooling2D(name="mean"), L.ReLU(name="relu")], "mean relu"),
        ([L.Conv2D(4, 3, name="c"), L.ReLU(name="relu")], "relu"),
        ([L.Conv2D(4, 3, name="c"), L.ReLU(3, name="other")], "c other"),
        ([L.Conv2D(4, 3, activation="tanh", name="c"), L.ReLU(name="r")], "c r"),
        ([L.Rescaling(2.0, name="scaled"), L.ReLU(name="relu")], "relu"),
        ([L.SeparableConv2D(4, 3, name="s"), L.ReLU(name="r")], "s/depthwise r"),
    ],
)
def test_a_rectifier_is_one_with_what_integers_run_it_with(layers, expected):
    assert list(places(in_order(*layers))) == ["picture", *expected.split()]


def test_a_separable_convolution_with_a_call_of_its_own_keeps_it():
    class Ones(L.SeparableConv2D):
        def call(self, inputs):
            return 0 * super().call(inputs) + 1

    model = keras.Sequential([keras.Input((6, 6, 2)), Ones(3, 3), L.Flatten()])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(8, 6, 6, 2)).astype("float32")
    callbacks = [aware("int8", activations=True)]
    history = model.fit(x, np.ones((8, 48)), callbacks=callbacks, verbose=0).history
    assert history["loss"] == pytest.approx([0.0], abs=1e-4)


@pytest.mark.parametrize("layer", ["1d", "2d"])
def test_a_separable_convolution_rounds_what_is_within(layer):
    shape = (8, 3) if layer == "1d" else (8, 8, 3)
    kind = L.SeparableConv1D if layer == "1d" else L.SeparableConv2D
    options = {"strides": 2, "bias_initializer": "normal", "activation": "tanh"}
    own = kind(5, 3, depth_multiplier=2, name="s", **options)
    model = in_order(own, L.Flatten(), L.Dense(4), shape=shape)
    x = X[:, 0] if layer == "1d" else X
    plain = to_numpy(own(x))
    within = to_numpy(keras.ops.depthwise_conv(x, own.depthwise_kernel, 2))
    ends = float(within.min()), float(within.max())
    callback = aware("bfloat16", activations=True, decay=0.0)
    compiled(model, optimizer=keras.optimizers.SGD(0.0))
    model.fit(x, Y, batch_size=32, verbose=0, callbacks=[callback])
    assert callback.ranges["s/depthwise"] == pytest.approx(ends, rel=2e-2)
    narrow = {"s/depthwise": (-1e-9, 1e-9)}  # nothing but the bias is left
    choice = km.Quantize("bfloat16")
    awareness = Awareness(model, choice, MovingAverage(decay=0.0), narrow)
    with awareness._activations.applied(training=False):
        awareness._activations._pass.prefix = "s/"
        found = to_numpy(own(x))
    awareness.release()
    expected = np.broadcast_to(np.tanh(to_numpy(own.bias)), plain.shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(own(x)), plain)


@pytest.mark.parametrize("kind", [L.SeparableConv1D, L.SeparableConv2D])
def test_ranges_make_an_integer_model_of_separable_convolutions(kind):
    keras.utils.set_random_seed(0)
    x = X[:, 0] if kind is L.SeparableConv1D else X
    model = in_order(
        kind(5, 3, name="s"),
        L.ReLU(name="relu"),
        L.Flatten(name="flat"),
        L.Dense(4, name="head"),
        shape=x.shape[1:],
    )
    compiled(model, optimizer=keras.optimizers.SGD(0.0))
    callback = aware("int8-static", decay=0.0)
    model.fit(x, Y, batch_size=32, verbose=0, callbacks=[callback])
    integers, _ = integer_model(model, callback.ranges)
    names = [type(layer).__name__ for layer in integers.layers]
    assert sum(name.startswith("IntegerDepthwise") for name in names) == 1
    assert set(callback.ranges) == {x.name for x in model.inputs} | {
        "s/depthwise",
        "relu",
        "head",
    }
    near, far = outputs(integers, x), outputs(model, x)
    assert np.abs(near - far).max() < 0.05 * np.abs(far).max()


def test_layers_of_a_remat_scope_are_refused():
    with keras.RematScope(mode="full"):
        again = L.Dense(4, name="again")
    model = compiled(in_order(L.Flatten(), again))
    with pytest.raises(ModelError, match="'again' computes.*again.*RematScope"):
        fit(model, aware("int8"))
    with keras.RematScope(mode=None):
        plain = L.Dense(4)
    fit(compiled(in_order(L.Flatten(), plain)), aware("int8"))


def test_no_samples_move_no_range(backend):
    if backend != "tensorflow":
        return  # no other has replicas without samples
    import tensorflow as tf

    model = in_order(L.Flatten(), L.Dense(4, name="head"))
    begin = {"head": (-2.0, 3.0)}
    awareness = Awareness(model, km.Quantize("int8"), MovingAverage(decay=0.5), begin)
    form = tf.TensorSpec((None, *X.shape[1:]))
    step = tf.function(lambda x: model(x, training=True), input_signature=[form])
    step(X[:0])
    assert awareness.ranges() == begin
    step(X[:1])
    assert set(awareness.ranges()) > set(begin)
    awareness.release()


def test_ranges_are_the_moving_average_of_what_the_layers_give():
    model = compiled(network(), JIT[-1], optimizer=keras.optimizers.SGD(0.0))
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
    model = compiled(network(), JIT[-1], optimizer=keras.optimizers.SGD(0.0))
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(moving_variance(model))
    )
    fit(model, aware(freeze_batch_norm=0.5), note, epochs=4)
    assert not np.array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[1], seen[3])
    fit(model, aware(freeze_batch_norm=1), note, epochs=1)
    assert not np.array_equal(seen[3], seen[4])


def test_batch_norm_that_inference_trains_is_never_frozen():
    model = called_in_training()
    y = np.zeros((32, 6, 6, 4), "float32")
    compiled(model, optimizer=keras.optimizers.SGD(0.0))
    before = moving_variance(model)
    model.fit(X, y, verbose=0, callbacks=[aware(freeze_batch_norm=0)])
    assert not np.array_equal(moving_variance(model), before)


class Broken(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


class BrokenAfterPredicting(keras.callbacks.Callback):
    """Leaves a function that was traced with the rounding, as validation does."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.predict(X, verbose=0)
        raise KeyboardInterrupt


class BrokenInAnEpoch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyboardInterrupt


def broken_off(how=Broken, scheme="int4"):
    """Return a model whose training was, and the callback."""
    model = compiled(small_network())
    callback = aware(scheme, activations=True, freeze_batch_norm=0)
    with pytest.raises(KeyboardInterrupt):
        fit(model, callback, how(), validation_data=(X, Y))
    return model, callback


USES = {
    "evaluate": lambda model, _: model.evaluate(X, Y, verbose=0),
    "predict": lambda model, _: model.predict(X, verbose=0),
    "train_on_batch": lambda model, _: model.train_on_batch(X, Y),
    "fit": lambda model, _: fit(model),
    "fit with another": lambda model, _: fit(model, aware("int8")),
    "save": lambda model, path: model.save(path),
    "save_model": keras.saving.save_model,
    "km.save_model": km.save_model,
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize(
    ("use", "how"),
    [
        *((use, Broken) for use in USES),
        ("predict", BrokenAfterPredicting),
        *((u, BrokenInAnEpoch) for u in ("fit", "save")),
    ],
)
def test_nothing_is_left_after_a_fit_that_was_broken_off(use, how, tmp_path):
    model, callback = broken_off(how)
    assert not is_plain(model)
    USES[use](model, tmp_path / "m.keras")
    assert is_plain(model)
    if "save" in use:
        again = keras.models.load_model(tmp_path / "m.keras")
        assert is_plain(again)
        assert list(map(type, again.layers)) == list(map(type, model.layers))
        for a, b in zip(again.weights, model.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    callback.detach()
    assert is_plain(model)


@pytest.mark.parametrize(
    ("use", "scheme"),
    [
        ("model", "int4"),
        *(("layers", scheme) for scheme in ("int4", "int8-dynamic")),
        ("detach", "int8-dynamic"),
    ],
)
def test_a_model_whose_fit_was_broken_off_computes_as_ever(use, scheme):
    model, callback = broken_off(scheme=scheme)
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    if use == "detach":
        callback.detach()
        assert is_plain(model)
    both = [model, plain]
    if use == "layers":  # which another model may have as well
        both = [keras.Model(m.inputs[0], m.get_layer("head").output) for m in both]
    found, expected = (to_numpy(m(X, training=True)) for m in both)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(
        moving_variance(model), moving_variance(plain), rtol=1e-5
    )


def test_it_can_be_detached_in_the_middle_of_an_epoch():
    model, twin = (compiled(network(), JIT[-1]) for _ in range(2))
    callback = aware("int4", activations=True)
    notes = []

    class Detach(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                callback.detach()
                assert is_plain(self.model)
                notes.extend(self.model.get_weights())

    fit(model, callback, Detach())
    twin.set_weights(notes)
    twin.fit(X[16:], Y[16:], batch_size=16, verbose=0)
    for a, b in zip(model.weights, twin.weights, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-4, atol=1e-6)


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
    model = compiled(nested())
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
    with pytest.warns(KerasMemWarning, match="statistics of 1 BatchNormalization"):
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
    choice = km.Quantize("int4")
    awareness = Awareness(model, choice, None, {})
    found = forward(model, x)()
    awareness.release()
    outputs = forward(model, x)
    changes = km.compress(model, choice).changes
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
def test_models_of_every_kind_train(name):
    kind = KINDS[name]
    model = kind.make()
    x = kind.inputs()
    y = np.zeros(model(x).shape, "float32")
    compiled(model, optimizer="adam")
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


def test_one_model_with_all_that_tfmot_refuses():
    model = everything_tfmot_refuses()
    x = np.random.default_rng(0).integers(1, 12, (16, 10)).astype("int32")
    y = np.random.default_rng(1).normal(size=(16, 2))
    small = compiled(km.compress(model, km.Quantize("int4")).model)
    compiled(model, JIT[-1], keras.optimizers.SGD(0.0))
    seen = model.fit(x, y, verbose=0, callbacks=[aware("int4")]).history["loss"][0]
    assert seen == pytest.approx(small.evaluate(x, y, verbose=0), rel=2e-5)
    compiled(model, optimizer="adam")
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
    found = compiled(integers).evaluate(X, Y, batch_size=32, verbose=0)
    plain = model.evaluate(X, Y, batch_size=32, verbose=0)
    assert abs(found - seen["val_loss"][0]) < 0.3 * abs(found - plain) + 1e-4
    alone = L.BatchNormalization(name="after")
    model = keras.Sequential([keras.Input((6, 6, 3)), L.Conv2D(4, 3, name="c"), alone])
    y = np.zeros((32, 4, 4, 4), "float32")
    callback = aware("int8-static")
    compiled(model).fit(X[:, :6, :6], y, verbose=0, callbacks=[callback])
    assert callback.ranges["c"] == callback.ranges["after"]


def codes_of(model):
    """Return what the codes of the layers of a model stand for, by name."""
    layers = [x for x in model.layers if isinstance(x, IntegerLayer)]
    return {layer.name: layer.output_codes for layer in layers}


@pytest.mark.parametrize("name", ["picture", None])
def test_compress_takes_the_ranges_of_the_training(name):
    layers = [L.Conv2D(4, 3, name="conv"), L.BatchNormalization(name="norm"), L.ReLU()]
    top = [L.Flatten(), L.Dense(4, name="head")]
    inputs = keras.Input((8, 8, 3), name=name)
    model = compiled(keras.Sequential([inputs, *layers, *top]))
    callback = aware("int8-static", decay=0.5)
    fit(model, callback)
    choice = km.Quantize("int8-static", ranges=callback.ranges)
    small = km.compress(model, choice).model  # without data
    codes = codes_of(small)
    wanted = callback.ranges
    for layer, (low, high) in {
        "conv": wanted[model.layers[2].name],
        "head": wanted["head"],
        next(iter(codes)): wanted[name or model.inputs[0].name],
    }.items():
        assert codes[layer].scale == pytest.approx((high - low) / 255, rel=1e-6)
    folded, _ = fold_batch_norm(model)
    expected, _ = integer_model(folded, callback.ranges)
    np.testing.assert_array_equal(outputs(small, X), outputs(expected, X))
    # What is known is not calibrated, what is not is: of the head here.
    some = {key: ends for key, ends in wanted.items() if key != "head"}
    choice = km.Quantize("int8-static", ranges=some)
    with pytest.raises(ConfigError, match="data=None, ranges without 'head'"):
        km.compress(model, choice)
    again = km.compress(model, choice, data=X / 9).model
    assert codes_of(again)["conv"] == codes["conv"]
    assert codes_of(again)["head"].scale < 0.5 * codes["head"].scale


class TestErrors:
    @pytest.mark.one_backend
    def test_a_scheme_that_is_chosen_afterwards(self):
        with pytest.raises(ConfigError, match="Next: .*another.*scheme='mixed'"):
            km.callbacks.QuantizationAware(km.Quantize("mixed", max_bytes="5KiB"))

    @pytest.mark.one_backend
    def test_no_quantize(self):
        with pytest.raises(ConfigError, match="takes a Quantize.*'int8'"):
            km.callbacks.QuantizationAware("int8")

    @pytest.mark.one_backend
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"decay": 1.0}, "decay .* at least 0 and below 1.*decay=1.0"),
            ({"decay": "0.9"}, "decay .* is a number.*decay='0.9'"),
            ({"decay": None}, "decay .* is a number.*decay=None"),
            ({"freeze_batch_norm": 2}, "freeze_batch_norm .*, 0 to 1.*=2"),
            ({"freeze_batch_norm": True}, "freeze_batch_norm .* is a number.*=True"),
            ({"activations": "int8"}, "activations .*True.*False.*='int8'"),
            ({"ranges": {"relu": (0, 1)}}, "not rounded.*activations=True.*=None"),
            ({"ranges": [(0, 1)]}, "by the name of a tensor.*Received: ranges="),
            ({"ranges": {"relu": 3}}, "lower and an upper end.*'relu'.*=3"),
            ({"ranges": {"relu": (1, -1)}}, r"lower and an upper.*=\(1, -1\)"),
            ({"ranges": {"relu": (0, float("nan"))}}, "both finite.*nan"),
        ],
    )
    def test_values_out_of_range(self, options, text):
        with pytest.raises(ConfigError, match=text):
            aware(**options)

    def test_ranges_of_another_model(self):
        text = "1 of 2 ranges are of no tensor.*'functional.*Received: ranges of 'rel'"
        callback = aware(activations=True, ranges={"rel": (0, 1), "relu": (0, 1)})
        model = compiled(network())
        with pytest.raises(ModelError, match=text):
            fit(model, callback)
        assert is_plain(model)
        reused = aware(activations=True)
        fit(model, reused)
        other = compiled(in_order(L.Flatten(), L.Dense(4, name="dense")))
        with pytest.raises(ModelError, match="new QuantizationAware for each model"):
            fit(other, reused)
        fit(model, reused)

    def test_ranges_of_a_calibration_are_of_the_model(self):
        model = compiled(in_order(L.Flatten(), L.Dense(4, "tanh", name="d")))
        begin = {
            "picture": (-9.0, 9.0),
            "d/linear": (-3.0, 3.0),
            "keras_tensor_1": (0, 1),
        }
        callback = aware("int8-static", ranges=begin, decay=0.5)
        fit(model, callback, batch_size=32)
        assert callback.ranges["picture"][0] < -4.5

    def test_a_model_that_is_not_built(self):
        model = compiled(keras.Sequential([L.Flatten(), L.Dense(4)]))
        if BACKEND == "tensorflow":  # others build it before any callback
            with pytest.raises(ModelError, match="no weights to round yet"):
                fit(model, aware())

    def test_activations_without_a_graph(self):
        model = compiled(KINDS["subclassed"].make())
        x = KINDS["subclassed"].inputs()
        with pytest.raises(ModelError, match="config lists none.*activations=False"):
            model.fit(x, np.zeros((3, 3)), callbacks=[aware(activations=True)])

    def test_a_model_that_is_quantized_already(self):
        model = compiled(km.compress(network(), km.Quantize()).model)
        with pytest.raises(ModelError, match="nothing to quantize"):
            fit(model, aware())


def test_a_training_for_static_rounds_what_that_will():
    inputs = keras.Input((7, 4), name="x")
    x = L.Dense(8, name="first")(inputs)
    y = L.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = L.LayerNormalization(name="norm")(x + y)
    x = L.Dense(4, activation="gelu", name="second")(x)
    x = L.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(inputs, L.Dense(2, name="top")(x))
    x = np.random.default_rng(0).normal(size=(32, 7, 4)).astype("float32")
    callback = aware("int8-static")
    compiled(model).fit(x, np.ones((32, 2)), verbose=0, callbacks=[callback])
    assert callback.ranges.keys() == {"x", "norm", "mean", "top"}
    choice = km.Quantize("int8-static", ranges=callback.ranges)
    made = km.compress(model, choice, verbose=0).model  # no range is missing
    assert sum(layer.name.endswith("_codes") for layer in made.layers) == 3


@pytest.mark.parametrize(
    ("layers", "exclude", "ranges"),
    [
        (
            [
                L.Conv1D(5, 3, activation="gelu", name="gelu"),
                L.MaxPooling1D(name="pool"),
                L.Conv1D(6, 2, name="wide"),
                L.LayerNormalization(name="norm"),
                L.Flatten(name="flat"),
            ],
            (),
            {"x", "pool", "flat", "top"},
        ),
        (
            [
                L.Conv1D(5, 3, name="conv"),
                L.MaxPooling1D(name="pool"),
                L.Conv1D(6, 2, name="wide"),
                L.BatchNormalization(name="norm"),
                L.Flatten(name="flat"),
            ],
            ("conv/.*", "norm/.*"),
            {"pool", "norm", "wide", "top"},
        ),
    ],
    ids=["moves of floats", "excluded"],
)
def test_what_floats_hand_to_integers_has_its_range(layers, exclude, ranges):
    inputs = [keras.Input((8, 4), name="x")]
    model = keras.Sequential([*inputs, *layers, L.Dense(2, name="top")])
    x = np.random.default_rng(0).normal(size=(32, 8, 4)).astype("float32")
    callback = aware(km.Quantize("int8-static", exclude=exclude))
    compiled(model).fit(x, np.ones((32, 2)), verbose=0, callbacks=[callback])
    assert callback.ranges.keys() == ranges
    choice = km.Quantize("int8-static", exclude=exclude, ranges=callback.ranges)
    km.compress(model, choice, verbose=0)  # takes no data


@pytest.mark.parametrize("learned", [False, True])
def test_what_an_activation_within_a_dense_takes_has_a_range(learned):
    shared = L.Dense(4, activation="tanh", name="twice")
    inputs = keras.Input((8, 8, 3), name="picture")
    x = shared(shared(L.Dense(4, activation="relu", name="first")(L.Flatten()(inputs))))
    outputs_ = L.Dense(4, activation="softmax", name="head")(x)
    model = compiled(keras.Model(inputs, outputs_))
    config = model.get_config()
    callback = aware("int8-static", learned_scales=learned)
    fit(model, callback)
    assert model.get_config() == config
    assert is_plain(model)
    wanted = {"picture", "first", "twice/linear", "twice", "twice:1/linear"}
    assert callback.ranges.keys() >= wanted | {"head/linear"}
    choice = km.Quantize("int8-static", ranges=callback.ranges)
    small = km.compress(model, choice).model  # takes no data
    low, high = callback.ranges["head/linear"]
    assert codes_of(small)["head_linear"].scale == pytest.approx((high - low) / 255)


def test_training_rounds_what_a_softmax_takes_as_integers_do():
    top = L.Dense(4, activation="softmax", name="head")
    inputs = keras.Input((4,), name="x")
    model = keras.Model(inputs, top(inputs))
    x, ranges = X[:, 0, 0, :1] * np.ones(4), {"x": (-3, 3), "head/linear": (-8.0, 8.0)}
    awareness = Awareness(model, km.Quantize("int8-static"), MovingAverage(), ranges)
    rounded = outputs(model, x)
    awareness.release()
    integers, _ = integer_model(model, ranges)
    np.testing.assert_allclose(rounded, outputs(integers, x), atol=0.02)
    assert np.abs(rounded - outputs(model, x)).max() > 1e-3


def test_a_training_for_static_needs_something_that_integers_compute():
    model = keras.Sequential([keras.Input((4,)), L.Embedding(9, 3), L.GRU(2)])
    with pytest.raises(ModelError, match="has nothing to quantize"):
        compiled(model).fit(
            np.ones((8, 4)),
            np.ones((8, 2)),
            verbose=0,
            callbacks=[aware("int8-static")],
        )
