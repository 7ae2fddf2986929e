"""Scales that training learns, and nothing but them."""

import json

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.techniques import from_json
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy
from tests.callbacks.test_quantization_aware import (
    JIT,
    Broken,
    BrokenInAnEpoch,
    aware,
    is_plain,
)
from tests.models import L

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 6)).astype("float32")
Y = RNG.normal(size=(16, 3)).astype("float32")


def compiled(model, jit=JIT[0], optimizer="sgd"):
    """Compile, without XLA where there is a choice: it takes seconds for each model."""
    model.compile(optimizer, "mse", jit_compile=jit)
    return model


def learning(scheme="int4", **options):
    return aware(scheme, learned_scales=True, **options)


def product(seed=0):
    """Return one product, whose gradients are known."""
    keras.utils.set_random_seed(seed)
    dense = L.Dense(3, use_bias=False, name="product")
    return keras.Sequential([keras.Input((6,), name="x"), dense])


def network(dtype=None):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,), name="x")
    h = L.Dense(8, "relu", name="first", dtype=dtype)(inputs)
    outputs = L.Dense(3, name="last", dtype=dtype)(h)
    return keras.Model(inputs, outputs, dtype=dtype)


def fit(model, *callbacks, **options):
    options = {"batch_size": 16, "verbose": 0, "shuffle": False, **options}
    return model.fit(X, Y, callbacks=list(callbacks), **options)


def scales_of(model, choice=None):
    """Return the scales of kernels that `km.compress` stores, in order."""
    small = km.compress(model, choice or km.Quantize("int4")).model
    return [to_numpy(v.scales).ravel() for v in quantized_variables(small)]


def by_hand(kernel, scales, rate, steps):
    """Return kernel, scales and where codes are cut off after steps of the paper's."""
    kernel, scales = kernel.astype("float64"), scales.astype("float64")
    axes = (0,) if scales.shape[1] > 1 else (0, 1)
    for _ in range(steps):
        ratio = kernel / scales
        codes = np.clip(np.rint(ratio), -7, 7)
        upstream = X.T @ (2 * (X @ (codes * scales) - Y) / Y.size)
        inside = np.abs(ratio) <= 7
        slopes = upstream * np.where(inside, codes - ratio, codes)
        kernel = kernel - rate * upstream * inside
        share = 1 / np.sqrt(7 * kernel.size / scales.size)
        scales = scales - rate * share * slopes.sum(axes, keepdims=True)
    return kernel, scales, ~inside


@pytest.mark.parametrize(
    ("granularity", "jit"), [("channel", JIT[-1]), ("tensor", JIT[0])]
)
def test_weights_and_scales_move_as_in_the_paper(granularity, jit):
    model = compiled(product(), jit, keras.optimizers.SGD(0.003))
    kernel = np.random.default_rng(3).uniform(-0.7, 0.7, (6, 3))
    model.layers[0].kernel.assign(kernel)
    start = np.full((1, 3 if granularity == "channel" else 1), 0.07, "float32")
    given = {"product/kernel": start}
    callback = learning(km.Quantize("int4", granularity=granularity, scales=given))
    fit(model, callback, epochs=4)
    kernel, scales, cut_off = by_hand(kernel, start, 0.003, 4)
    assert 0 < cut_off.sum() < 18
    assert np.abs(scales / start - 1).min() > 1e-3
    found = callback.scales["product/kernel"]
    np.testing.assert_allclose(found, scales.ravel(), rtol=1e-4)
    np.testing.assert_allclose(to_numpy(model.layers[0].kernel), kernel, atol=1e-5)
    assert is_plain(model)


def test_the_first_step_is_that_of_scales_that_are_not_learned():
    losses, kernels = [], []
    for callback in (aware("int4"), learning("int4")):
        model = compiled(network())
        losses.append(fit(model, callback).history["loss"][0])
        kernels.append(to_numpy(model.get_layer("first").kernel))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    np.testing.assert_allclose(*kernels, atol=1e-7)


def test_adam_moves_scales_of_every_size_by_the_same_share():
    """Of int8 a step is 0.002, which a rate of 0.001 would soon make negative."""
    model = compiled(network(), optimizer=keras.optimizers.Adam(1e-3))
    before, callback = scales_of(model, km.Quantize("int8")), learning("int8")
    fit(model, callback)
    for scales, start in zip(callback.scales.values(), before, strict=True):
        share = np.abs(scales / start - 1)
        assert share.max() == pytest.approx(1e-3, rel=0.01)


def test_learning_wins_where_a_weight_that_does_not_count_sets_the_scale():
    x = RNG.normal(size=(64, 6)).astype("float32")
    x[:, 0] = 0
    y = x @ np.array([[0, 0.3, -0.2, 0.25, 0.1, -0.15]], "float32").T
    data, losses = [np.tile(a, (40, 1)) for a in (x, y)], []  # forty steps
    for callback in (aware("int4"), learning("int4")):
        model = keras.Sequential([keras.Input((6,)), L.Dense(1, use_bias=False)])
        model.layers[0].kernel.assign([[3.0], [0.1], [0.1], [0.1], [0.1], [0.1]])
        compiled(model, optimizer=keras.optimizers.Adam(0.02))
        options = {"batch_size": 64, "shuffle": False, "verbose": 0}
        model.fit(*data, callbacks=[callback], **options)
        choice = km.Quantize("int4", scales=callback.scales)
        small = compiled(km.compress(model, choice).model)
        losses.append(small.evaluate(x, y, verbose=0))
    assert losses[1] < 0.2 * losses[0]


SCHEMES = {
    "int8": km.Quantize("int8"),
    "dynamic": km.Quantize("int8-dynamic"),
    "groups": km.Quantize("int4", granularity="group", group_size=4),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_compress_stores_weights_by_the_scales_learned(name, tmp_path):
    choice = SCHEMES[name]
    model, callback = network(), learning(choice)
    compiled(model, optimizer=keras.optimizers.SGD(0.01))
    history = fit(model, callback, epochs=2, validation_data=(X, Y)).history
    trained = km.Quantize(**{**vars(choice), "scales": callback.scales})
    result = km.compress(model, from_json(json.loads(json.dumps(trained.to_json()))))
    small = compiled(result.model)
    found = [to_numpy(v.scales).ravel() for v in quantized_variables(small)]
    for stored, learned in zip(found, callback.scales.values(), strict=True):
        np.testing.assert_array_equal(stored, learned)
    loss = small.evaluate(X, Y, verbose=0)
    assert loss == pytest.approx(history["val_loss"][-1], rel=1e-5)
    without = compiled(km.compress(model, choice).model)
    assert abs(without.evaluate(X, Y, verbose=0) - loss) > 1e-6
    result.save(tmp_path / "small.keras")
    again = compiled(keras.models.load_model(tmp_path / "small.keras"))
    assert again.evaluate(X, Y, verbose=0) == pytest.approx(loss, rel=1e-6)


def test_ranges_of_activations_are_learned_too():
    """What rounding adds is all that the loss is of, so the step is to be smaller."""
    model = compiled(product(), optimizer=keras.optimizers.Adam(0.01))
    x = np.concatenate([X, np.full((1, 6), 300, "float32")])  # spoils the range
    y = x @ to_numpy(model.layers[0].kernel)
    counts = np.array([1.0] * 16 + [0.0])
    callback, found = learning("int8-static"), []
    for epochs in (1, 9):
        history = model.fit(
            *(x, y, 17, epochs),
            verbose=0,
            sample_weight=counts,
            callbacks=[callback],
            validation_data=(X, y[:16]),
        ).history
        found.append(callback.ranges["x"])
    (low, high), (later_low, later_high) = found
    assert high == pytest.approx(297, rel=1e-4)
    assert later_high < 0.95 * high
    assert later_high - later_low == pytest.approx(later_high * (1 - low / high))
    assert callback.scales == {}
    trained = km.Quantize("int8-static", ranges=callback.ranges)
    integers = compiled(km.compress(model, trained).model)
    loss = integers.evaluate(X, y[:16], verbose=0)
    assert loss == pytest.approx(history["val_loss"][-1], rel=0.02)
    assert is_plain(model)


def test_a_tensor_of_zeros_gets_a_range_when_it_is_more_than_that():
    """So begins a branch whose BatchNormalization is to add nothing at first."""
    inputs = keras.Input((6,), name="x")
    begin = L.BatchNormalization(gamma_initializer="zeros", name="branch")
    h = L.Add(name="sum")([inputs, begin(L.Dense(6)(inputs))])
    model = keras.Model(inputs, L.Dense(3, name="last")(h))
    compiled(model, optimizer=keras.optimizers.Adam(0.01))
    callback = learning("int8-static")
    loss = fit(model, callback, epochs=3).history["loss"]
    assert np.isfinite(loss).all()
    low, high = callback.ranges["branch"]
    assert low < 0 < high
    assert {"x", "sum", "last"} < callback.ranges.keys()


@pytest.mark.parametrize(("how", "jit"), [(Broken, JIT[0]), (BrokenInAnEpoch, JIT[-1])])
def test_nothing_is_left_after_a_fit_that_was_broken_off(how, jit, tmp_path):
    inner = keras.optimizers.Adam()
    scaled = keras.optimizers.LossScaleOptimizer(inner)
    model = compiled(network("mixed_float16"), jit, scaled)
    fit(model)
    slots = [id(v) for v in model.optimizer.variables]
    trained = [id(v) for v in model.optimizer._trainable_variables]
    with pytest.raises(KeyboardInterrupt):
        fit(model, learning(activations=True), how(), batch_size=8)
    model.save(tmp_path / "m.keras")
    assert is_plain(model)
    assert [id(v) for v in model.optimizer.variables] == slots
    assert [id(v) for v in model.optimizer._trainable_variables] == trained
    for optimizer in (model.optimizer, inner):
        assert not {"apply", "save_own_variables"} & set(vars(optimizer))
    iterations = int(inner.iterations.value)
    fit(model)
    assert int(inner.iterations.value) == iterations + 1


def test_a_checkpoint_in_the_middle_is_that_of_a_plain_model(tmp_path):
    """Warnings are errors: of an optimizer with other variables one would tell."""
    model = compiled(network(), optimizer="adam")
    path = tmp_path / "{epoch}.keras"
    stop = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    fit(model, stop, learning(), keras.callbacks.ModelCheckpoint(path), epochs=2)
    again = keras.models.load_model(tmp_path / "2.keras")
    assert len(again.optimizer.variables) == len(model.optimizer.variables)
    fit(again, learning(), epochs=3, initial_epoch=2)
    assert int(again.optimizer.iterations.value) == 3


def test_learning_goes_on_from_the_scales_of_before():
    model, callback = compiled(network()), learning()
    fit(model, callback, epochs=2)
    before = callback.scales
    model.optimizer.learning_rate = 0.0
    fit(model, callback)
    assert before.keys() == {"first/kernel", "last/kernel"}
    given = aware(km.Quantize("int4", scales=before))
    one, two = (fit(model, each).history["loss"] for each in (given, callback))
    assert one == pytest.approx(two, rel=1e-6)
    for scales in (callback.scales, given.scales):
        for path in before:
            np.testing.assert_array_equal(scales[path], before[path])


def test_the_learning_rate_is_that_of_the_optimizer_by_then():
    model, callback = compiled(network(), optimizer="adam"), learning()
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: seen.append(callback.scales)
    )
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * (epoch < 2))
    fit(model, rates, callback, note, epochs=4)
    one, two, three, four = (each["first/kernel"] for each in seen)
    assert np.abs(two / one - 1).max() > 1e-3
    np.testing.assert_array_equal(three, two)
    np.testing.assert_array_equal(four, two)


def test_gradients_are_accumulated_clipped_and_averaged_as_they_were():
    optimizer = keras.optimizers.AdamW(
        0.01, gradient_accumulation_steps=2, global_clipnorm=1.0, use_ema=True
    )
    model, callback = compiled(network(), optimizer=optimizer), learning()
    before = scales_of(model)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: seen.append(callback.scales["first/kernel"])
    )
    fit(model, callback, note, epochs=2)
    np.testing.assert_array_equal(seen[0], before[0])
    share = np.abs(seen[1] / seen[0] - 1)
    assert share.max() == pytest.approx(0.01, rel=0.02)
    assert is_plain(model)


@keras.saving.register_keras_serializable("tests")
class Twice(keras.Model):
    """Calls one layer in two places; nothing tells its graph."""

    def __init__(self, **options):
        super().__init__(**options)
        self.shared, self.frozen = L.Dense(6), L.Dense(3)
        self.frozen.trainable = False

    def call(self, x):
        return self.frozen(self.shared(self.shared(x)))


def nested():
    """Return a model with one in it, a shared layer, a layer in one, and zeros."""
    inner = keras.Sequential([keras.Input((6,)), L.Dense(6, name="one")], name="in")
    inputs, shared = keras.Input((6,)), L.Dense(6, name="one")
    wrapper = L.TimeDistributed(L.Dense(6), name="wrapper")
    h = L.Flatten()(wrapper(L.Reshape((1, 6))(inner(shared(shared(inputs))))))
    h = h + L.Dense(6, kernel_initializer="zeros")(inputs)
    return keras.Model(inputs, L.Dense(3, name="last")(h))


def test_models_of_every_kind_learn():
    twice = Twice(name="twice")
    twice(X)
    for model, names in (
        (nested(), {"one/kernel", "in/one/kernel", "wrapper/1/kernel", "last/kernel"}),
        (twice, {"1/kernel"}),
    ):
        callback, variables = learning(), len(model.variables)
        rate = keras.optimizers.Adam(0.01)
        monitor = km.callbacks.GradientMonitor()
        pruning = km.callbacks.Pruning(km.Prune(0.5, end=0.0))
        options = {"validation_data": (X, Y), "epochs": 2}
        compiled(model, optimizer=rate)
        loss = fit(model, callback, monitor, pruning, **options).history["val_loss"]
        assert callback.scales.keys() == names
        assert len(monitor.records[0].variables) == len(model.trainable_variables)
        assert len(model.variables) == variables
        choice = km.Quantize("int4", scales=callback.scales)
        small = compiled(km.compress(model, choice).model)
        assert small.evaluate(X, Y, verbose=0) == pytest.approx(loss[-1], rel=1e-5)


class TestBadInput:
    @pytest.mark.one_backend
    @pytest.mark.parametrize(
        ("scheme", "options", "text"),
        [
            ("int4", {"learned_scales": 3}, "learned, True, or not.*learned_scales=3"),
            ("float16", {}, "Scales are learned of symmetric codes.*'float16'"),
            ("int8-static", {"activations": False}, "Scales are learned of symmetric"),
            (km.Quantize("int4", symmetric=False), {}, "symmetric=False"),
        ],
    )
    def test_what_cannot_be_learned(self, scheme, options, text):
        with pytest.raises(ConfigError, match=text):
            aware(scheme, **{"learned_scales": True, **options})

    @pytest.mark.one_backend
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"scales": 3}, "positive numbers by the name of a weight.*scales=3"),
            ({"scales": {"a": [1, -1]}}, r"finite numbers above 0.*\['a'\]=\[1, -1\]"),
            ({"scales": {"a": []}}, "finite numbers above 0"),
            ({"scales": {"a": [1e-40, 1e39]}}, r"finite.*\[1e-40, 1e\+39\]"),
            ({"scales": {"a": 1e-40}}, r"finite numbers above 0.*=1e-40"),
            ({"scales": {"a": 1}, "symmetric": False}, "known are for symmetric"),
            ({"scales": {"a": 1}, "rounding": "adaptive"}, "rounding='adaptive'"),
            ({"scales": {"a": 1}, "scheme": "int8-static"}, "'int8-static'"),
        ],
    )
    def test_scales_that_are_none(self, options, text):
        with pytest.raises(ConfigError, match=text):
            km.Quantize(**{"scheme": "int4", **options})

    @pytest.mark.parametrize(
        ("scales", "text"),
        [
            ({"other/kernel": [1.0]}, "1 of 1 scales are of no weight.*'other/kernel'"),
            ({"product/kernel": [1.0]}, "has 3 scales.*'channel'.*Received: 1"),
        ],
    )
    def test_scales_of_another_model(self, scales, text):
        choice = km.Quantize("int4", scales=scales)
        with pytest.raises(ModelError, match=text):
            km.compress(product(), choice)
        model = compiled(product())
        with pytest.raises(ModelError, match=text):
            fit(model, learning(choice))
        assert is_plain(model)

    def test_an_optimizer_made_of_several(self):
        each = keras.optimizers.OptimizerMap(keras.optimizers.SGD())
        model = compiled(product(), optimizer=keras.optimizers.MultiOptimizer(each))
        with pytest.raises(ConfigError, match="to be one.*made of several"):
            fit(model, learning())
        assert is_plain(model)
