"""Thin layers compute what the thick ones did, or the nearest of their rank."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers
from scipy.linalg import svdvals

import kerasmem as km
from kerasmem.compression.factorize.apply import factors
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy

RNG = np.random.default_rng(0)


def low_rank(layer, rank):
    """Give a kernel a low rank in every way that it could be factorized."""
    kernel = to_numpy(layer.kernel)
    *window, inputs, outputs = kernel.shape
    product = RNG.normal(size=(inputs, rank)) @ RNG.normal(size=(rank, outputs))
    for axis, length in enumerate(window):
        shape = [1] * kernel.ndim
        shape[axis] = length
        product = product * RNG.normal(size=shape)
    layer.kernel.assign(product.reshape(kernel.shape) / np.sqrt(kernel.size))
    layer.bias.assign(RNG.normal(size=layer.bias.shape))


def of(layer, *shape):
    model = keras.Sequential([keras.Input(shape), layer])
    low_rank(layer, 2)
    return model, RNG.normal(size=(3, *shape)).astype("float32")


LAYERS = {
    "dense": lambda: of(layers.Dense(20, activation="relu"), 16),
    "sequence": lambda: of(layers.Dense(20), 5, 16),
    "conv1d": lambda: of(
        layers.Conv1D(16, 3, padding="causal", dilation_rate=2), 9, 12
    ),
    "conv2d": lambda: of(
        layers.Conv2D(16, (3, 5), strides=(2, 1), padding="same", activation="tanh"),
        *(9, 8, 12),
    ),
    "dilated": lambda: of(layers.Conv2D(16, 3, dilation_rate=(2, 1)), 9, 8, 12),
    "pointwise": lambda: of(layers.Conv2D(16, 1, strides=2), 5, 5, 12),
    "conv3d": lambda: of(layers.Conv3D(10, 2), 4, 4, 4, 8),
}


# A method is for windows; "spatial" is for those of two axes, and "channel" elsewhere.
WAYS = {
    "dense": ["spatial"],
    "sequence": ["spatial"],
    "conv1d": ["spatial"],
    "conv2d": ["spatial", "channel"],
    "dilated": ["spatial", "channel"],
    "pointwise": ["spatial"],
    "conv3d": ["channel"],
}


@pytest.mark.parametrize(
    ("name", "method"), [(name, way) for name in LAYERS for way in WAYS[name]]
)
def test_a_kernel_of_low_rank_loses_nothing(name, method, tmp_path):
    model, x = LAYERS[name]()
    before = model.get_weights()
    # A spatial kernel of low rank in its channels and of one row times one column has
    # the rank of the channels as a matrix of rows by columns.
    result = km.compress(model, km.Factorize(energy=1 - 1e-9, method=method))
    assert result.model.count_params() < model.count_params()
    expected = to_numpy(model(x))
    np.testing.assert_allclose(
        to_numpy(result.model(x)), expected, rtol=1e-4, atol=1e-5 * abs(expected).max()
    )
    (change,) = (c for c in result.changes if c.changed)
    assert change.after_bytes < change.before_bytes
    assert "100.0% of its energy" in change.detail
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    result.save(tmp_path / "thin.keras")
    again = keras.models.load_model(tmp_path / "thin.keras")
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(result.model(x)))


@pytest.mark.parametrize(
    ("equation", "shape", "out"),
    [
        ("abc,cd->abd", (4, 12), (None, 14)),
        ("abc,cde->abde", (4, 12), (None, 7, 3)),
        ("abcd,cde->abe", (4, 6, 5), (None, 13)),
        ("...x,xy->...y", (4, 12), 14),
        ("...ab,bc->...ac", (4, 12), (None, 14)),
        ("abc,cd->abd", (4, 12), (4, 14)),
        ("abcd,cde->abe", (4, 6, 5), (4, 13)),
        ("...ab,bc->...ac", (4, 12), (4, 14)),
    ],
)
def test_einsum_layers_are_factorized_by_their_equation(equation, shape, out):
    bias_axes = equation[-1]
    layer = layers.EinsumDense(equation, out, bias_axes=bias_axes, activation="relu")
    model = keras.Sequential([keras.Input(shape), layer])
    kernel = to_numpy(layer.kernel)
    split = 2 if equation.startswith("abcd,") else 1
    rows = int(np.prod(kernel.shape[:split]))
    product = RNG.normal(size=(rows, 3)) @ RNG.normal(size=(3, kernel.size // rows))
    layer.kernel.assign(product.reshape(kernel.shape))
    small = km.compress(model, km.Factorize(energy=1 - 1e-9)).model
    assert small.count_params() < model.count_params()
    x = RNG.normal(size=(2, *shape)).astype("float32")
    np.testing.assert_allclose(
        to_numpy(small(x)), to_numpy(model(x)), rtol=1e-4, atol=1e-4
    )


MATRICES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**31))


@pytest.mark.one_backend
@settings(max_examples=50, deadline=None)
@given(MATRICES, st.floats(0.05, 1))
def test_the_loss_is_that_of_the_singular_values_left_out(given_, share):
    rows, columns, seed = given_
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    sizes = svdvals(matrix)
    for ratio, energy in ((share, None), (None, share)):
        left, right = factors(matrix, ratio, energy)
        rank = left.shape[1]
        assert rank == right.shape[0]
        if ratio is not None:
            assert rank == max(1, round(ratio * min(matrix.shape)))
        lost = np.square(matrix - left @ right).sum()
        np.testing.assert_allclose(lost, np.square(sizes[rank:]).sum(), atol=1e-9)
    kept = np.square(sizes[:rank]).sum() / np.square(sizes).sum()
    assert kept >= share - 1e-12
    if rank > 1:
        assert np.square(sizes[: rank - 1]).sum() / np.square(sizes).sum() < share


def network():
    inner = keras.Sequential(
        [keras.Input((8, 8, 16)), layers.Conv2D(24, 3, activation="relu", name="inner")]
    )
    inputs = keras.Input((8, 8, 3))
    shared = layers.Conv2D(16, 3, padding="same", name="shared")
    x = layers.Conv2D(16, 3, padding="same", name="first")(inputs)
    x = layers.BatchNormalization()(shared(shared(x)) + x)
    x = layers.Flatten()(layers.DepthwiseConv2D(3, name="depthwise")(inner(x)))
    model = keras.Model(inputs, layers.Dense(3, name="last")(x))
    model.compile("adam", "mse")
    return model


def test_shared_and_nested_layers_are_factorized_once_and_train_on():
    model = network()
    x, y = RNG.normal(size=(8, 8, 8, 3)).astype("float32"), np.ones((8, 3), "float32")
    result = km.compress(
        model,
        [km.Factorize(0.3, exclude="last"), km.Distill(epochs=1), km.Quantize("int8")],
        data=(x, y),
    )
    changed = {c.layer for c in result.changes if c.changed and "now" in c.detail}
    assert changed == {"first", "shared", "inner"}
    reasons = {
        c.layer: c.detail
        for c in result.changes
        if c.technique == "factorize" and c.weight.endswith("kernel")
    }
    assert reasons["last"] == "is excluded"
    assert "Dense, EinsumDense or Conv" in reasons["depthwise"]
    names = [layer.name for layer in result.model.layers]
    assert names.count("shared_first") == names.count("shared_last") == 1
    assert "shared" not in names


def test_masks_go_through_and_what_would_not_hold_is_left_alone():
    inputs = keras.Input((5,))
    x = layers.Embedding(9, 12, mask_zero=True)(inputs)
    hidden = layers.Dense(20, activity_regularizer="l2", name="hidden")
    bound = layers.Dense(20, kernel_constraint="non_neg", name="bound")
    model = keras.Model(inputs, layers.LSTM(3)(bound(hidden(x))))
    low_rank(hidden, 2)
    result = km.compress(model, km.Factorize(energy=1 - 1e-9))
    (change,) = (c for c in result.changes if c.changed)
    assert change.layer == "hidden"
    (kept,) = (c for c in result.changes if c.weight.endswith("bound/kernel"))
    assert "constraint" in kept.detail
    words = np.array([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]])
    np.testing.assert_allclose(
        to_numpy(result.model(words)), to_numpy(model(words)), atol=1e-5
    )
    thin = result.model.get_layer("hidden_first")
    assert thin.activity_regularizer is None


def test_a_layer_is_shared_by_inputs_of_other_sizes_and_ranks():
    a, b = keras.Input((6, 6, 12)), keras.Input((4, 4, 12))
    head = layers.Conv2D(16, 3, name="head")
    dense = layers.Dense(20, name="dense")
    flat = layers.GlobalAveragePooling2D()
    model = keras.Model([a, b], [dense(head(a)), dense(flat(head(b)))])
    low_rank(head, 2)
    low_rank(dense, 2)
    small = km.compress(model, km.Factorize(energy=1 - 1e-9)).model
    assert small.count_params() < model.count_params()
    data = [RNG.normal(size=(2, *x.shape[1:])).astype("float32") for x in (a, b)]
    for one, other in zip(small(data), model(data), strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("earlier", [km.Prune(0.5), km.Cluster(8)])
def test_steps_that_undo_others_are_refused_before_work_starts(earlier):
    with pytest.raises(ConfigError, match="put 'factorize' first"):
        km.compress(network(), [earlier, km.Factorize(0.5)])


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of rank_ratio and energy"),
        ({"rank_ratio": 0.5, "energy": 0.5}, "exactly one of rank_ratio and energy"),
        ({"rank_ratio": 0}, "above 0"),
        ({"rank_ratio": "half"}, "above 0"),
        ({"energy": 1.1}, "above 0"),
        ({"rank_ratio": 0.5, "method": "svd"}, "`method` of Factorize"),
    ],
)
def test_bad_values_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        km.Factorize(**arguments)


class Subclassed(keras.Model):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.dense = layers.Dense(4)

    def call(self, x):
        return self.dense(x)


@pytest.mark.one_backend
def test_models_without_anything_to_gain_are_refused():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
    with pytest.raises(ModelError, match=r"nothing to fac.*Next: reduce the rank"):
        km.compress(model, km.Factorize(0.9))
    with pytest.raises(
        ModelError, match="Most frequent reason: is excl.*exclude=\\('[.]',\\)\\)[.]$"
    ):
        km.compress(model, km.Factorize(0.9, exclude="."))
    without = Subclassed()
    without(np.ones((1, 4)))
    with pytest.raises(ModelError, match=r"nothing to fac.*Next: reduce the rank"):
        km.compress(without, km.Factorize(0.9))
