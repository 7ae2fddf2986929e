"""Scales that training learns, and nothing but them."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError
from kerasmem.graph.values import to_numpy
from tests.compression.aware.nets import JIT, aware, compiled, ranges, scales
from tests.models import L

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 6)).astype("float32")
Y = RNG.normal(size=(16, 3)).astype("float32")


def learning(model, scheme="int4", **options):
    return aware(model, scheme, learned_scales=True, **options)


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
    small = km.compress(
        model, choice or km.Quantize("int4", granularity="channel")
    ).model
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
    trained = learning(model, km.Quantize("int4", granularity=granularity))
    trained.layers[0].kernel.first.assign(start.ravel())
    fit(trained, epochs=4)
    kernel, expected, cut_off = by_hand(kernel, start, 0.003, 4)
    assert 0 < cut_off.sum() < 18
    assert np.abs(expected / start - 1).min() > 1e-3
    found = scales(trained)["product/kernel"]
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4)
    np.testing.assert_allclose(trained.get_weights()[0], kernel, atol=1e-5)


def test_the_first_step_is_that_of_scales_that_are_not_learned():
    losses, kernels = [], []
    for make in (aware, learning):
        trained = make(compiled(network()), "int4")
        losses.append(fit(trained).history["loss"][0])
        kernels.append(trained.get_weights()[0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    np.testing.assert_allclose(*kernels, atol=1e-7)


def test_adam_moves_scales_of_every_size_by_the_same_share():
    """Of int8 a step is 0.002, which a rate of 0.001 would soon make negative."""
    model = compiled(network(), optimizer=keras.optimizers.Adam(1e-3))
    before, trained = scales_of(model, km.Quantize("int8")), learning(model, "int8")
    fit(trained)
    for found, start in zip(scales(trained).values(), before, strict=True):
        share = np.abs(found / start - 1)
        assert share.max() == pytest.approx(1e-3, rel=0.01)


def test_learning_wins_where_a_weight_that_does_not_count_sets_the_scale():
    x = RNG.normal(size=(64, 6)).astype("float32")
    x[:, 0] = 0
    y = x @ np.array([[0, 0.3, -0.2, 0.25, 0.1, -0.15]], "float32").T
    data, losses = [np.tile(a, (40, 1)) for a in (x, y)], []  # forty steps
    for make in (aware, learning):
        model = keras.Sequential([keras.Input((6,)), L.Dense(1, use_bias=False)])
        model.layers[0].kernel.assign([[3.0], [0.1], [0.1], [0.1], [0.1], [0.1]])
        trained = make(compiled(model, optimizer=keras.optimizers.Adam(0.02)), "int4")
        trained.fit(*data, batch_size=64, shuffle=False, verbose=0)
        small = compiled(km.compress(trained, km.Quantize("int4")).model)
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
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.01))
    trained = learning(model, choice)
    history = fit(trained, epochs=2, validation_data=(X, Y)).history
    result = km.compress(trained, choice)
    small = compiled(result.model)
    found = [to_numpy(v.scales).ravel() for v in quantized_variables(small)]
    for stored, learned in zip(found, scales(trained).values(), strict=True):
        np.testing.assert_array_equal(stored, learned)
    loss = small.evaluate(X, Y, verbose=0)
    assert loss == pytest.approx(history["val_loss"][-1], rel=1e-5)
    without = compiled(km.compress(km.dequantize(trained), choice).model)
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
    trained, found = learning(model, "int8-static"), []
    for epochs in (1, 9):
        history = trained.fit(
            *(x, y, 17, epochs),
            verbose=0,
            sample_weight=counts,
            validation_data=(X, y[:16]),
        ).history
        found.append(ranges(trained)["x"])
    (low, high), (later_low, later_high) = found
    assert high == pytest.approx(297, rel=1e-4)
    assert later_high < 0.95 * high
    assert later_high - later_low == pytest.approx(later_high * (1 - low / high))
    assert scales(trained) == {}
    integers = compiled(km.compress(trained, km.Quantize("int8-static")).model)
    loss = integers.evaluate(X, y[:16], verbose=0)
    assert loss == pytest.approx(history["val_loss"][-1], rel=0.02)


def test_a_tensor_of_zeros_gets_a_range_when_it_is_more_than_that():
    """So begins a branch whose BatchNormalization is to add nothing at first."""
    inputs = keras.Input((6,), name="x")
    begin = L.BatchNormalization(gamma_initializer="zeros", name="branch")
    h = L.Add(name="sum")([inputs, begin(L.Dense(6)(inputs))])
    model = keras.Model(inputs, L.Dense(3, name="last")(h))
    compiled(model, optimizer=keras.optimizers.Adam(0.01))
    trained = learning(model, "int8-static")
    loss = fit(trained, epochs=3).history["loss"]
    assert np.isfinite(loss).all()
    low, high = ranges(trained)["branch"]
    assert low < 0 < high
    assert {"x", "sum", "last"} < ranges(trained).keys()


def test_a_file_in_the_middle_goes_on_as_the_training_would(tmp_path):
    """Warnings are errors: of an optimizer with other variables one would tell."""
    trained = learning(compiled(network(), optimizer="adam"))
    path = tmp_path / "{epoch}.keras"
    fit(trained, keras.callbacks.ModelCheckpoint(path), epochs=3)
    again = keras.models.load_model(tmp_path / "2.keras")
    assert len(again.optimizer.variables) == len(trained.optimizer.variables)
    fit(again, epochs=3, initial_epoch=2)
    assert int(again.optimizer.iterations.value) == 3
    for name, expected in scales(trained).items():
        np.testing.assert_allclose(scales(again)[name], expected, rtol=1e-6)


def test_scales_follow_a_schedule_of_the_learning_rate():
    trained = learning(compiled(network(), optimizer="adam"))
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: seen.append(scales(trained))
    )
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * (epoch < 2))
    fit(trained, rates, note, epochs=4)
    one, two, three, four = (each["first/kernel"] for each in seen)
    assert np.abs(two / one - 1).max() > 1e-3
    np.testing.assert_array_equal(three, two)
    np.testing.assert_array_equal(four, two)


def test_gradients_are_accumulated_clipped_and_averaged():
    optimizer = keras.optimizers.AdamW(
        0.01, gradient_accumulation_steps=2, global_clipnorm=1.0, use_ema=True
    )
    model = compiled(network(), optimizer=optimizer)
    before, trained = scales_of(model), learning(model)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: seen.append(scales(trained)["first/kernel"])
    )
    fit(trained, note, epochs=2)
    np.testing.assert_array_equal(seen[0], before[0])
    share = np.abs(seen[1] / seen[0] - 1)
    assert share.max() == pytest.approx(0.01, rel=0.02)


def test_weight_decay_draws_scales_to_where_they_began():
    """Not to zero: what no gradient moves stays."""
    decaying = keras.optimizers.SGD(0.1, weight_decay=0.5)
    trained = learning(compiled(network(), optimizer=decaying))
    before = scales(trained)["last/kernel"]
    zeros = np.zeros_like(Y)
    trained.fit(X, zeros, sample_weight=np.zeros(16), epochs=3, verbose=0)
    np.testing.assert_array_equal(scales(trained)["last/kernel"], before)
    trained.get_layer("last").kernel.change.assign([1.0, 1.0, 1.0])
    trained.fit(X, zeros, sample_weight=np.zeros(16), batch_size=16, verbose=0)
    found = scales(trained)["last/kernel"] / before
    np.testing.assert_allclose(found, 1 + (1 - 0.1 * 0.5), rtol=1e-5)


def test_scaled_losses_train_them_too():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    model = compiled(network("mixed_float16"), JIT[-1], scaled)
    trained = learning(model, activations=True)
    before = scales(trained)["first/kernel"]
    fit(trained, epochs=2)
    assert np.abs(scales(trained)["first/kernel"] / before - 1).max() > 5e-3


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
        variables = len(model.variables)
        monitor = km.callbacks.GradientMonitor()
        pruning = km.callbacks.Pruning(km.Prune(0.5, end=0.0))
        options = {"validation_data": (X, Y), "epochs": 2}
        trained = learning(compiled(model, optimizer=keras.optimizers.Adam(0.01)))
        loss = fit(trained, monitor, pruning, **options).history["val_loss"]
        assert scales(trained).keys() == names
        assert len(monitor.records[0].variables) == len(trained.trainable_variables)
        assert len(trained.variables) == variables + 2 * len(names)
        small = compiled(km.compress(trained, km.Quantize("int4")).model)
        assert small.evaluate(X, Y, verbose=0) == pytest.approx(loss[-1], rel=1e-5)
        assert len(km.dequantize(trained).variables) == variables


class TestBadInput:
    @pytest.mark.one_backend
    @pytest.mark.parametrize(
        ("scheme", "options", "text"),
        [
            ("int4", {"learned_scales": 3}, "one of True, False.*learned_scales=3"),
            ("float16", {}, "learned_scales=True needs symmetric codes.*'float16'"),
            ("int8-static", {"activations": False}, "needs symmetric codes"),
            (km.Quantize("int4", symmetric=False), {}, "symmetric=False"),
        ],
    )
    def test_what_cannot_be_learned(self, scheme, options, text):
        with pytest.raises(ConfigError, match=text):
            aware(product(), scheme, **{"learned_scales": True, **options})

    @pytest.mark.parametrize(
        ("choice", "text"),
        [
            (
                km.Quantize("int4", granularity="tensor"),
                "for 'int4'.*y='channel'.*Next",
            ),
            (km.Quantize("int8"), "of 1 weights.*for 'int4'.*Received: .*'int8'"),
            (km.Quantize("int4", symmetric=False), "symmetric=False"),
            (
                km.Quantize("int4", rounding="adaptive"),
                "rounding='nearest'.*='adaptive'",
            ),
            (km.Quantize("int8-static"), "Received: .*'int8-static'"),
            (km.Quantize("mixed", budget=km.Budget(99)), "Received: .*'mixed'"),
            (km.Quantize("float16"), "Received: .*'float16'"),
        ],
    )
    def test_scales_that_were_learned_for_another_choice(self, choice, text):
        with pytest.raises(ConfigError, match=text):
            km.compress(learning(product()), choice, data=X)
