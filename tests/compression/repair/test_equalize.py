"""Equalizing: the same function, from channels that are equally large."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kerasmem as km
from kerasmem.compression.quantize import Equalize
from kerasmem.compression.quantize.equalize import (
    LARGEST,
    ScalePair,
    Side,
    balance,
    largest_by,
)
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from tests.compression.repair.test_fold_batch_norm import (
    assert_same_function,
    outputs,
    samples,
)
from tests.graph.channels.strategies import PLANS, randomize
from tests.models import ORIGINS, L, Subclassed, chain, from_origin, in_place

few = settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
sizes = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
tables = st.lists(st.lists(sizes, min_size=3, max_size=3), min_size=3, max_size=3)


def largest(kernel, axis):
    others = tuple(a for a in range(kernel.ndim) if a != axis % kernel.ndim)
    return np.abs(kernel).max(axis=others)


def test_a_pair_is_scaled_as_the_paper_says():
    model = chain((4,), L.Dense(5, activation="relu"), L.Dense(3))
    randomize(model)
    first, bias, second, _ = model.get_weights()
    r1, r2 = largest(first, 1), largest(second, 0)
    s = np.sqrt(r1 * r2) / r2
    changes = in_place(Equalize(), model)
    found = model.get_weights()
    np.testing.assert_allclose(found[0], first / s, rtol=1e-5)
    np.testing.assert_allclose(found[1], bias / s, rtol=1e-5)
    np.testing.assert_allclose(found[2], second * s[:, None], rtol=1e-5)
    np.testing.assert_allclose(largest(found[0], 1), largest(found[2], 0), rtol=1e-5)
    assert [change.changed for change in changes] == [True, True, True, False]
    assert changes[-1].detail == "reaches an output of the model"


def test_a_depthwise_layer_between_two_ends_at_the_geometric_mean():
    model = chain(
        (6, 6, 3), L.Conv2D(4, 1), L.ReLU(), L.DepthwiseConv2D(3), L.LeakyReLU(),
        L.Conv2D(2, 1),
    )  # fmt: skip
    randomize(model)
    kernels = [w for w in model.weights if w.name == "kernel"]
    before = [to_numpy(kernel) for kernel in kernels]
    axes = (3, 2, 2)
    ranges = [largest(k, axis) for k, axis in zip(before, axes, strict=True)]
    expected, same = np.prod(ranges, axis=0) ** (1 / 3), clone(model)
    in_place(Equalize(), model)
    for kernel, axis in zip(kernels, axes, strict=True):
        np.testing.assert_allclose(largest(to_numpy(kernel), axis), expected, rtol=1e-4)
    assert_same_function(same, model)


@given(tables, tables, tables)
def test_along_a_chain_every_channel_becomes_equally_large(first, middle, last):
    one, eye = np.arange(3), np.array([[0, 1, 2]])
    peaks = {0: np.array(first), 1: np.array(middle).max(0)[:, None], 2: np.array(last)}
    before = {key: value.copy() for key, value in peaks.items()}
    links = [
        ScalePair(Side(0, eye), (Side(1, one[:, None]),), 3),
        ScalePair(Side(1, one[:, None]), (Side(2, one[:, None]),), 3),
    ]
    factors = balance(links, peaks)
    made = largest_by(eye, peaks[0], 3)
    between = peaks[1][:, 0]
    taken = largest_by(one[:, None], peaks[2], 3)
    free = [(f < LARGEST * 0.99) & (f > 1.01 / LARGEST) for f in factors]
    alive = (made > 0) & (between > 0) & (taken > 0) & free[0] & free[1]
    np.testing.assert_allclose(made[alive], between[alive], rtol=1e-3)
    np.testing.assert_allclose(between[alive], taken[alive], rtol=1e-3)
    assert all(np.isfinite(f).all() and (f > 0).all() for f in factors)
    np.testing.assert_allclose(peaks[0] * factors[0], before[0], rtol=1e-9)


SAME = {"padding": "same"}
STEPS = (
    lambda x, n: L.Dense(n)(x),
    lambda x, n: L.Conv2D(2 * n, 3, groups=2 if x.shape[-1] % 2 == 0 else 1, **SAME)(x),
    lambda x, n: L.Conv2D(n, 3, use_bias=False, **SAME)(x),
    lambda x, n: L.DepthwiseConv2D(3, depth_multiplier=1 + n % 2, **SAME)(x),
    lambda x, n: L.SeparableConv2D(n, 3, depth_multiplier=1 + n % 2, **SAME)(x),
    lambda x, n: L.Conv2DTranspose(n, 3, activation="relu", **SAME)(x),
    lambda x, n: L.ReLU()(L.Dropout(0.5)(x)),
    lambda x, n: L.PReLU(shared_axes=[1, 2])(x),
    lambda x, n: L.MaxPooling2D(2, strides=1, **SAME)(L.ZeroPadding2D(1)(x)),
    lambda x, n: L.Concatenate()([L.Conv2D(n, 1)(x), L.ReLU()(x)]),
    lambda x, n: L.Conv2D(2, 1)(keras.ops.relu(x)) + L.Conv2D(2, 3, **SAME)(x),
    lambda x, n: L.Activation("tanh")(x),
)


@few
@given(PLANS, st.sampled_from(ORIGINS))
def test_whatever_is_scaled_the_function_stays(plan, origin):
    choices = iter(plan)
    inputs = keras.Input((5, 5, 3))
    x = L.Conv2D(4, 1, activation="relu")(L.Conv2D(4, 3)(inputs))
    for _ in range(1 + next(choices) % 6):
        x = STEPS[next(choices) % len(STEPS)](x, 1 + next(choices) % 4)
    x = L.Flatten()(x) if next(choices) % 2 else L.GlobalMaxPooling2D()(x)
    model = keras.Model(inputs, L.Dense(2)(x))
    randomize(model, next(choices))
    before, scaled = clone(model), from_origin(model, origin)
    changes = in_place(Equalize(), scaled)
    assert any(change.changed for change in changes)
    assert_same_function(before, scaled)


def test_channels_that_come_first_are_found_behind_a_flatten():
    model = chain(
        (2, 3, 4), L.Permute((3, 1, 2)), L.Permute((2, 3, 1)), L.Dense(5), L.ReLU(),
        L.Flatten(), L.Dense(2),
    )  # fmt: skip
    randomize(model)
    scaled = clone(model)
    changes = in_place(Equalize(), scaled)
    assert sum(change.changed for change in changes) == 3
    assert_same_function(model, scaled)


def nested(x):
    inner = keras.Sequential([keras.Input((4, 4, 3)), L.Conv2D(4, 1), L.ReLU()])
    return L.Conv2D(2, 1)(inner(x))


def test_layers_of_a_model_in_a_model_are_pairs_too():
    inputs = keras.Input((4, 4, 3))
    model = keras.Model(inputs, nested(inputs))
    randomize(model)
    scaled = clone(model)
    changes = in_place(Equalize(), scaled)
    assert sum(change.changed for change in changes) == 3
    assert_same_function(model, scaled)


def shared(x):
    conv = L.Conv2D(3, 1, name="conv")
    return conv(L.ReLU()(conv(x)))


def tanh(x):
    return L.Conv2D(3, 1, activation="tanh", name="conv")(x)


def einsum(x):
    return L.EinsumDense("abcd,de->abce", (4, 4, 3), name="conv")(x)


STOPS = {
    "needs scaling of 'conv', which is called in several places": shared,
    "has an activation that does not preserve scales": tanh,
    "feeds 'norm', which blocks scaling": lambda x: L.BatchNormalization(name="norm")(
        L.Conv2D(3, 1, name="conv")(x)
    ),
    "feeds 'relu6', which blocks scaling": lambda x: L.ReLU(6, name="relu6")(
        L.Conv2D(3, 1, name="conv")(x)
    ),
    "feeds 'add', which blocks scaling": lambda x: L.Add(name="add")(
        [L.Conv2D(3, 1, name="conv")(x), x]
    ),
    "feeds 'other' along another axis": lambda x: L.Flatten(
        data_format="channels_first", name="other"
    )(L.Conv2D(3, 1, name="conv")(x)),
    "is an EinsumDense": einsum,
}


@pytest.mark.parametrize("reason", STOPS)
def test_where_no_scale_can_pass_nothing_is_scaled_and_it_is_told(reason):
    inputs = keras.Input((4, 4, 3))
    y = L.Conv2D(4, 1, activation="relu", name="first")(inputs)
    y = L.Conv2D(3, 1, activation="softplus", name="second")(y)
    model = keras.Model(inputs, L.Flatten()(STOPS[reason](y)))
    randomize(model)
    scaled = clone(model)
    changes = in_place(Equalize(), scaled)
    assert sorted({c.layer for c in changes if c.changed}) == ["first", "second"]
    told = {c.detail for c in changes if c.layer == "conv"}
    assert told == {reason}
    assert_same_function(model, scaled)


def bounded(kind):
    inputs = keras.Input((6,))
    if kind == "layer":
        x = L.ReLU(6.0)(L.Dense(5)(inputs))
    elif kind == "activation":
        x = L.Activation("relu6")(L.Dense(5)(inputs))
    else:
        x = L.Dense(5, activation="relu6")(inputs)
    model = keras.Model(inputs, L.Dense(2)(x))
    randomize(model)
    return model


@pytest.mark.parametrize("kind", ["layer", "activation", "inside"])
def test_a_relu6_is_in_the_way_unless_it_is_to_be_replaced(kind):
    model = bounded(kind)
    with pytest.raises(ModelError, match="no two layers to equalize.*ReLU6"):
        in_place(Equalize(), model)
    made, changes = apply_technique(Equalize(replace_relu6=True), model)
    assert made is not model
    assert sum(change.changed for change in changes) == 3
    x = samples(model)
    np.testing.assert_allclose(outputs(made, x), outputs(model, x), atol=1e-5)
    far = outputs(made, 1000 * x)
    first, bias, second, last = model.get_weights()
    expected = np.maximum(1000 * x @ first + bias, 0) @ second + last
    np.testing.assert_allclose(far, expected, rtol=1e-4, atol=1e-2)


def test_channels_of_zeros_stay_and_what_is_not_finite_is_an_error():
    model = chain((4,), L.Dense(5, activation="relu"), L.Dense(3, name="head"))
    randomize(model)
    kernel = model.layers[1].kernel
    kernel.assign(to_numpy(kernel) * [1, 0, 1, 1e-12, 1])
    head = to_numpy(model.layers[2].kernel)
    head[2] = 0
    model.layers[2].kernel.assign(head)
    scaled = clone(model)
    in_place(Equalize(), scaled)
    assert_same_function(model, scaled)
    found = scaled.get_weights()
    np.testing.assert_array_equal(found[0][:, 1], 0)
    np.testing.assert_array_equal(found[0][:, 2], to_numpy(kernel)[:, 2])
    before = [to_numpy(w) for w in model.weights]
    head[0, 0] = np.inf
    model.layers[2].kernel.assign(head)
    with pytest.raises(
        ModelError, match="Equalization needs finite weights.*'head/kernel'"
    ):
        in_place(Equalize(), model)
    np.testing.assert_array_equal(to_numpy(model.weights[0]), before[0])


def test_what_has_nothing_to_equalize_is_told():
    with pytest.raises(ModelError, match=r"no two layers.*dense.*reaches an output"):
        in_place(Equalize(), chain((4,), L.Dense(5, name="dense")))
    with pytest.raises(ModelError, match="The model .* has no graph, so its layers"):
        model = Subclassed()
        model(np.zeros((1, 5), "int32"))
        in_place(Equalize(), model)
    with pytest.raises(ConfigError, match="`replace_relu6` of Equalize must be"):
        Equalize(replace_relu6="yes")


def ill_scaled():
    """A trained-like net of which some channels are a thousand times too small."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            *(L.Conv2D(16, 3, use_bias=False), L.BatchNormalization(), L.ReLU()),
            *(L.DepthwiseConv2D(3, use_bias=False), L.BatchNormalization(), L.ReLU()),
            *(L.Conv2D(8, 1, activation="relu"), L.GlobalAveragePooling2D()),
            L.Dense(5),
        ]
    )
    randomize(model)
    for norm in (model.layers[1], model.layers[4]):
        factors = 10.0 ** np.random.default_rng(3).uniform(-3, 0, 16)
        norm.gamma.assign(to_numpy(norm.gamma) * factors)
        norm.beta.assign(to_numpy(norm.beta) * factors)
        taker = model.layers[model.layers.index(norm) + 2]
        kernel = to_numpy(taker.kernel)
        taker.kernel.assign(kernel / factors[:, None])
    return model


def test_a_net_with_ill_scaled_channels_is_rescued():
    model = ill_scaled()
    x = samples(model, 32)
    expected = outputs(model, x)
    per_tensor = km.Quantize("int8", granularity="tensor")

    def error(steps):
        found = outputs(km.compress(model, steps).model, x)
        return np.linalg.norm(found - expected) / np.linalg.norm(expected)

    harmed = error([km.FoldBatchNorm(), per_tensor])
    rescued = error([km.FoldBatchNorm(), km.Equalize(), per_tensor])
    assert harmed > 0.1
    assert rescued < 0.1 * harmed
