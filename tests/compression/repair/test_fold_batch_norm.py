"""Folding: the same function without the normalization, or a reason why not."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerasmem as km
from kerasmem.compression.quantize import FoldBatchNorm
from kerasmem.compression.quantize.fold import fold_batch_norm
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ModelError
from kerasmem.graph.layers import weights
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import PLANS, randomize
from tests.models import ORIGINS, L, chain, from_origin

BN = L.BatchNormalization


def outputs(model, x):
    found = model(keras.ops.convert_to_tensor(x), training=False)
    return to_numpy(keras.ops.cast(found, "float32"))


def samples(model, count=3):
    shape = [size or count for size in model.inputs[0].shape]
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def with_statistics(model, seed=0):
    """Give the normalization of a model numbers as a training leaves them."""
    random = np.random.default_rng(seed)
    for norm in norms(model):
        count = norm.moving_mean.shape[0]
        norm.moving_mean.assign(0.3 * random.normal(size=count))
        norm.moving_variance.assign(random.uniform(0.5, 1.5, count))
        if norm.scale:
            norm.gamma.assign(random.uniform(0.5, 1.5, count))
        if norm.center:
            norm.beta.assign(0.3 * random.normal(size=count))
    return model


def norms(model):
    layers = model._flatten_layers()
    return [layer for layer in layers if isinstance(layer, BN)]


def assert_same_function(model, folded, tolerance=1e-5):
    expected, x = outputs(model, samples(model)), samples(model)
    error = np.abs(outputs(folded, x) - expected).max()
    assert error <= tolerance * np.abs(expected).max()


LAYERS = {
    "dense": ((5,), lambda: L.Dense(4)),
    "dense_without_bias": ((3, 5), lambda: L.Dense(4, use_bias=False)),
    "conv1d": ((9, 3), lambda: L.Conv1D(4, 3, use_bias=False)),
    "conv2d_groups": ((6, 6, 4), lambda: L.Conv2D(6, 3, groups=2)),
    "conv3d": ((4, 4, 4, 2), lambda: L.Conv3D(3, 2)),
    "depthwise1d": ((9, 3), lambda: L.DepthwiseConv1D(3, depth_multiplier=2)),
    "depthwise2d": (
        (6, 6, 3),
        lambda: L.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False),
    ),
    "separable1d": ((9, 3), lambda: L.SeparableConv1D(4, 3)),
    "separable2d": ((6, 6, 3), lambda: L.SeparableConv2D(4, 3, use_bias=False)),
    "transposed1d": ((5, 3), lambda: L.Conv1DTranspose(4, 3, use_bias=False)),
    "transposed2d": ((4, 4, 3), lambda: L.Conv2DTranspose(4, 3, strides=2)),
    "transposed3d": ((3, 3, 3, 2), lambda: L.Conv3DTranspose(3, 2)),
    "einsum": ((5, 6), lambda: L.EinsumDense("btc,chd->bthd", (5, 2, 3))),
    "einsum_with_bias_elsewhere": (
        (5, 6),
        lambda: L.EinsumDense("btc,chd->bthd", (5, 2, 3), bias_axes="h"),
    ),
    "einsum_with_bias": (
        (5, 6),
        lambda: L.EinsumDense("btc,cd->btd", (5, 3), bias_axes="td"),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_with_a_kernel_takes_up_what_comes_after_it(name, tmp_path):
    shape, make = LAYERS[name]
    model = chain(shape, make(), BN())
    randomize(model)
    folded, changes = fold_batch_norm(model)
    assert norms(folded) == []
    assert len(folded.layers) == len(model.layers) - 1
    assert_same_function(model, folded)
    assert {w.path for w in weights(folded)} <= {c.weight for c in changes}
    folded.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    x = samples(model)
    np.testing.assert_array_equal(outputs(again, x), outputs(folded, x))


def test_an_axis_in_the_middle_is_folded_where_the_kernel_makes_it():
    model = chain((5, 6), L.EinsumDense("btc,chd->bthd", (5, 2, 3)), BN(axis=2))
    randomize(model)
    folded, _ = fold_batch_norm(model)
    assert norms(folded) == []
    assert folded.layers[-1].bias_axes == "h"
    assert_same_function(model, folded)


def test_what_a_dense_becomes_is_arithmetic():
    model = chain((2,), L.Dense(2), BN(epsilon=0.5, scale=False))
    _, dense, norm = model.layers
    dense.set_weights([np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([5.0, 6.0])])
    # beta, mean, variance: factors 1 / 2 and 1 / 4
    norm.set_weights([np.array(v) for v in ([7.0, 8.0], [1.0, 2.0], [3.5, 15.5])])
    folded, changes = fold_batch_norm(model)
    kernel, bias = folded.layers[-1].get_weights()
    assert kernel.tolist() == [[0.5, 0.5], [1.5, 1.0]]
    assert bias.tolist() == [(5 - 1) / 2 + 7, (6 - 2) / 4 + 8]
    told = {c.weight.rpartition("/")[2]: (c.changed, c.after_bytes) for c in changes}
    assert told["kernel"] == (True, 16)
    assert told["moving_mean"] == (True, 0)
    assert sum(c.before_bytes for c in changes) == (6 + 6) * 4
    assert sum(c.after_bytes for c in changes) == 6 * 4


def test_one_after_the_other_both_go():
    model = chain((5,), L.Dense(4), BN(), BN(center=False), L.ReLU())
    randomize(model)
    folded, changes = fold_batch_norm(model)
    assert norms(folded) == []
    assert_same_function(model, folded)
    names = [norm.name for norm in norms(model)]
    assert f"absorbs {names[0]!r}, {names[1]!r}" in {c.detail for c in changes}


def nested():
    """A Sequential in a model, called twice; a Sequential by itself at its end."""
    inner = keras.Sequential(
        [keras.Input((6, 6, 3)), L.Conv2D(3, 3, padding="same"), BN(), L.ReLU()]
    )
    inputs = keras.Input((6, 6, 3))
    x = inner(inner(inputs))
    tail = keras.Sequential([keras.Input((6, 6, 3)), L.Conv2D(4, 3), BN(), L.Flatten()])
    return keras.Model(inputs, tail(x))


def test_models_in_a_model_are_opened_and_stay():
    model = nested()
    randomize(model)
    folded, _ = fold_batch_norm(model)
    assert norms(folded) == []
    assert [type(layer) for layer in folded.layers] == [
        type(layer) for layer in model.layers
    ]
    assert [len(each.layers) for each in folded.layers[1:]] == [2, 2]
    assert_same_function(model, folded)


def two_norms(model_of):
    inputs = keras.Input((4, 4, 3))
    return keras.Model(inputs, model_of(inputs))


def branching(x):
    y = L.Conv2D(3, 3, padding="same", name="conv")(x)
    return BN()(y) + y


def twice(x):
    conv = L.Conv2D(3, 3, padding="same", name="conv")
    return BN()(conv(conv(x)))


def norm_twice(x):
    norm = BN()
    return norm(L.Conv2D(3, 1)(norm(L.Conv2D(3, 1)(x))))


@keras.saving.register_keras_serializable("tests")
class OwnNorm(BN):
    """Might do anything."""


@keras.saving.register_keras_serializable("tests")
class Block(L.Layer):
    """A layer with a normalization inside."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = BN()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x):
        return self.norm(x)


def trained_inside(x):
    inner = keras.Sequential([keras.Input((4, 4, 3)), L.Conv2D(3, 1), BN()])
    return inner(x, training=True)


STAYS = {
    "does not come right after a layer with a kernel": lambda x: BN()(L.ReLU()(x)),
    "is not the only reader of the output of 'conv'": branching,
    "comes after 'conv', which is called in several places": twice,
    "is called in several places": norm_twice,
    "comes after 'conv', which has an activation": lambda x: BN()(
        L.Conv2D(3, 1, activation="relu", name="conv")(x)
    ),
    "is along another axis than the channels of 'conv'": lambda x: BN(axis=1)(
        L.Conv2D(3, 1, name="conv")(x)
    ),
    "is of the custom class OwnNorm": lambda x: OwnNorm()(L.Conv2D(3, 1)(x)),
    "is called with training=True": trained_inside,
    "is inside 'block', which has no graph": lambda x: Block(name="block")(
        L.Conv2D(3, 1)(x)
    ),
}


@pytest.mark.parametrize("reason", STAYS)
def test_what_cannot_be_folded_stays_and_is_told(reason):
    model = two_norms(lambda x: BN()(L.Conv2D(3, 1, name="first")(STAYS[reason](x))))
    randomize(model)
    count = len(norms(model))
    folded, changes = fold_batch_norm(model)
    assert len(norms(folded)) == count - 1
    told = {c.detail for c in changes if c.weight.endswith("moving_mean")}
    assert told == {reason, "folded into 'first'"}
    if "training" not in reason:
        assert_same_function(model, folded)
    with pytest.raises(ModelError, match=f"no BatchNormalization.*{reason}"):
        apply_technique(FoldBatchNorm(), two_norms(STAYS[reason]))


def test_a_frozen_norm_is_folded_whatever_training_says():
    model = two_norms(lambda x: BN(trainable=False)(L.Conv2D(3, 1)(x), training=True))
    randomize(model)
    folded, _ = fold_batch_norm(model)
    assert norms(folded) == []
    assert_same_function(model, folded)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("moving_variance", -1.0, "variance that is negative"),
        ("moving_variance", -1e-3, "variance that is negative"),
        ("moving_variance", np.inf, "not finite"),
        ("gamma", np.nan, "not finite"),
        ("gamma", 1e38, "would make the weights before it too large"),
    ],
)
def test_statistics_that_make_no_sense_are_left_where_they_are(name, value, reason):
    model = two_norms(lambda x: BN()(L.Conv2D(3, 1, name="conv")(x)))
    model.get_layer("conv").kernel.assign(np.full((1, 1, 3, 3), 50.0))
    getattr(norms(model)[0], name).assign([1.0, value, 1.0])
    folded, changes = fold_batch_norm(model)
    assert folded is model
    assert any(reason in change.detail for change in changes)


def test_a_variance_of_zero_and_a_kernel_of_zeros_are_no_trouble():
    model = two_norms(lambda x: BN()(L.Conv2D(3, 1, kernel_initializer="zeros")(x)))
    norms(model)[0].moving_variance.assign(np.zeros(3))
    norms(model)[0].beta.assign([1.0, 2.0, 3.0])
    folded, _ = fold_batch_norm(model)
    assert outputs(folded, samples(model))[0, 0, 0].tolist() == [1.0, 2.0, 3.0]


SAME = {"padding": "same"}
STEPS = (
    lambda x, n, bias: L.Dense(n, use_bias=bias)(x),
    lambda x, n, bias: L.Conv2D(n, 3, use_bias=bias, **SAME)(x),
    lambda x, n, bias: L.DepthwiseConv2D(3, use_bias=bias, **SAME)(x),
    lambda x, n, bias: L.SeparableConv2D(n, 3, use_bias=bias, **SAME)(x),
    lambda x, n, bias: L.Conv2DTranspose(n, 3, use_bias=bias, **SAME)(x),
    lambda x, n, bias: L.ReLU()(x),
    lambda x, n, bias: L.Concatenate()([x, L.Conv2D(n, 1)(x)]),
)


def stack(plan):
    """Return the model of a plan: layers, normalization behind most of them."""
    choices = iter(plan)
    inputs = x = keras.Input((5, 5, 3))
    for _ in range(2 + next(choices) % 4):
        before, step = x, STEPS[next(choices) % len(STEPS)]
        x = step(x, 1 + next(choices) % 5, bool(next(choices) % 2))
        if next(choices) % 4:
            x = BN(scale=bool(next(choices) % 3), center=bool(next(choices) % 3))(x)
        if not next(choices) % 3 and before.shape == x.shape:
            x = L.Add()([x, before])
    model = keras.Model(inputs, x)
    randomize(model, next(choices))
    return model


@settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(PLANS, st.sampled_from(ORIGINS))
def test_whatever_is_folded_the_function_stays(plan, origin):
    model = from_origin(stack(plan), origin)
    folded, changes = fold_batch_norm(model)
    gone = {c.layer for c in changes if c.detail.startswith("folded into")}
    assert len(norms(folded)) == len(norms(model)) - len(gone)
    assert_same_function(model, folded)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_in_bfloat16_only_its_rounding_is_between_them(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = chain((6, 6, 3), L.Conv2D(4, 3), BN(), L.ReLU(), L.Conv2D(4, 3), BN())
    finally:
        keras.config.set_dtype_policy("float32")
    randomize(model)
    folded, _ = fold_batch_norm(model)
    assert [layer.dtype_policy.name for layer in folded.layers[1:]] == [policy] * 3
    assert_same_function(model, folded, tolerance=0.02)


SMALL = {
    "MobileNet": {"alpha": 0.25},
    "MobileNetV2": {"alpha": 0.35},
}


@pytest.mark.one_backend  # what a backend computes is seen on networks of a few layers
@pytest.mark.parametrize("name", SMALL)
def test_an_application_computes_the_same_without_its_norms(name):
    make = getattr(keras.applications, name)
    model = make(
        weights=None,
        input_shape=(32, 32, 3),
        classes=5,
        classifier_activation=None,
        **SMALL[name],
    )
    with_statistics(model)
    folded, _ = fold_batch_norm(model)
    assert norms(model)
    assert norms(folded) == []
    assert_same_function(model, folded)


def test_statistics_of_the_inputs_are_taken_along():
    normalization = L.Normalization()
    normalization.adapt(np.array([[1.0, 2.0], [3.0, 8.0]]))
    model = chain((2,), normalization, L.Dense(3), BN())
    folded, _ = fold_batch_norm(model)
    assert_same_function(model, folded)


def test_it_is_a_step_of_compress_and_what_is_frozen_stays_so():
    model = chain((5,), L.Dense(8, trainable=False), BN(), L.ReLU(), L.Dense(2))
    randomize(model)
    model.compile("adam", "mse")
    before = outputs(model, samples(model))
    result = km.compress(model, [km.FoldBatchNorm(), km.Quantize("int8")])
    assert norms(result.model) == []
    assert result.model.compiled
    assert not result.model.layers[1].trainable
    assert result.report.after.parameters < result.report.before.parameters
    np.testing.assert_array_equal(outputs(model, samples(model)), before)
    found = outputs(result.model, samples(model))
    np.testing.assert_allclose(found, before, atol=0.05 * np.abs(before).max())


def test_a_model_without_norms_is_an_error():
    model = chain((5,), L.Dense(8))
    with pytest.raises(
        ModelError, match="that can be folded. Received: no BatchNormalization"
    ):
        apply_technique(FoldBatchNorm(), model)
