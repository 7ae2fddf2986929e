"""Weights take few values, and keep to them while the model trains on."""

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.compression.recipe import preserve_technique
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy

# Its BatchNormalization is among what is not clustered; there are no samples.
pytestmark = pytest.mark.filterwarnings("ignore:The statistics of 1 BatchNorm")
X = np.random.default_rng(0).normal(size=(64, 8, 8, 2)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 64)
JIT = {"tensorflow": [False, True], "jax": [True], "torch": [False]}[
    keras.backend.backend()
]


def network(jit=False, **optimizer):
    inner = keras.Sequential(
        [keras.Input((8, 8, 4)), layers.Conv2D(6, 3, activation="relu", name="inner")]
    )
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 1, name="first")(inputs)
    x = layers.BatchNormalization()(inner(x))
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.Dense(3, name="last")(layers.Flatten()(x))
    model = keras.Model(inputs, x)
    model.compile(
        keras.optimizers.Adam(0.01, **optimizer),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit,
    )
    return model


def values(model):
    return {
        weight.path: to_numpy(weight)
        for weight in model.weights
        if weight.name == "kernel" and "depthwise" not in weight.path
    }


def distinct(array):
    return len(np.unique(array))


@pytest.mark.parametrize("start", ["kmeans++", "linear", "density"])
def test_kernels_take_few_values_and_nothing_else_does(start, tmp_path):
    model = network()
    before = model.get_weights()
    result = km.compress(model, km.Cluster(8, start=start))
    found = values(result.model)
    assert found
    assert all(distinct(array) <= 8 for array in found.values())
    changed = {change.weight for change in result.changes if change.changed}
    # The first kernel has no more than eight entries: it stays as it is.
    assert changed == {"sequential/inner/kernel", "last/kernel"}
    assert all(c.sqnr_db > 8 for c in result.changes if c.changed)
    for old, weight in zip(before, result.model.weights, strict=True):
        if weight.path not in found:
            np.testing.assert_array_equal(old, to_numpy(weight))
    for old, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)
    result.save(tmp_path / "few.keras")
    loaded = keras.models.load_model(tmp_path / "few.keras")
    np.testing.assert_array_equal(to_numpy(loaded(X)), to_numpy(result.model(X)))


@pytest.mark.parametrize(
    ("jit", "granularity"), [(JIT[0], "tensor"), (JIT[-1], "channel")]
)
def test_training_moves_the_values_and_not_the_clusters(jit, granularity):
    choice = km.Cluster(4, granularity=granularity)
    at_once = km.compress(network(jit), choice, seed=0).model
    tuned = km.compress(
        at_once, choice, data=(X, Y), fine_tune_epochs=2, batch_size=16, seed=0
    ).model
    pairs = zip(values(at_once).values(), values(tuned).values(), strict=True)
    for one, other in pairs:
        assert (one != other).any()
        before, after = (
            [array] if granularity == "tensor" else np.moveaxis(array, -1, 0)
            for array in (one, other)
        )
        for row, moved in zip(before, after, strict=True):
            assert distinct(moved) <= 4
            for value in np.unique(row):
                assert distinct(moved[row == value]) == 1
    assert all(v.constraint is None for v in tuned.trainable_variables)


@pytest.mark.parametrize("optimizer", [{}, {"use_ema": True}, {"weight_decay": 0.1}])
def test_one_step_moves_a_value_by_the_mean_of_what_its_entries_would_do(optimizer):
    steps = {}
    for name in ("free", "tied"):
        keras.utils.set_random_seed(4)
        model = km.compress(network(), km.Cluster(4), seed=0).model
        model.compile(
            keras.optimizers.SGD(0.1, **optimizer), model.loss, jit_compile=JIT[-1]
        )
        start = values(model)
        if name == "free":
            model.fit(X, Y, batch_size=64, verbose=0)
        else:
            with preserve_technique(km.Cluster(4), model, model):
                model.fit(X, Y, batch_size=64, verbose=0)
        steps[name] = values(model)
    pairs = zip(start.values(), *(steps[n].values() for n in steps), strict=True)
    for before, free, tied in pairs:
        for value in np.unique(before):
            same = before == value
            np.testing.assert_allclose(
                tied[same], free[same].mean(), rtol=1e-4, atol=1e-6
            )


def test_means_of_many_entries_are_exact():
    inputs = keras.Input((1000,))
    layer = layers.Dense(1500, use_bias=False)
    model = keras.Model(inputs, layer(inputs))
    layer.kernel.assign(np.where(np.arange(1500) % 2, 0.3, -0.1) * np.ones((1000, 1)))
    model.compile("sgd", "mse")
    choice = km.Cluster(2)
    with preserve_technique(choice, model, model):
        moved = to_numpy(layer.kernel) * 1.01 + np.float32(1e-4)
        tied = to_numpy(layer.kernel.constraint(keras.ops.convert_to_tensor(moved)))
    expected = np.where(np.arange(1500) % 2, 0.3 * 1.01 + 1e-4, -0.1 * 1.01 + 1e-4)
    np.testing.assert_allclose(tied, np.tile(expected, (1000, 1)), rtol=1e-6)


def test_zeros_of_pruning_and_values_hold_through_training_with_a_teacher():
    result = km.compress(
        network(),
        [km.Prune(0.5), km.Cluster(8), km.Distill(epochs=2)],
        data=(X, Y),
        seed=0,
    )
    pruned = {c.weight for c in result.changes if c.technique == "prune" and c.changed}
    for path, array in values(result.model).items():
        assert distinct(array) <= 8
        if path in pruned:
            assert abs((array == 0).mean() - 0.5) < 0.02


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1}, "2 to 256"),
        ({"n": 257}, "2 to 256"),
        ({"n": 8.0}, "2 to 256"),
        ({"n": 8, "seed": -1}, "seed` of Cluster"),
        ({"n": 8, "include": 5}, "list of regular expressions"),
        ({"n": 8, "start": "random"}, "start` of Cluster must be one of"),
        ({"n": 8, "granularity": "group"}, "granularity` of Cluster"),
        ({"n": 8, "exclude": "("}, "regular expression"),
    ],
)
def test_bad_values_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        km.Cluster(**arguments)


def test_weights_that_are_not_finite_or_not_there_are_refused():
    model = network()
    kernel = model.get_layer("first").kernel
    broken = to_numpy(kernel).copy()
    broken[0, 0, 0, 0] = np.nan
    kernel.assign(broken)
    with pytest.raises(ModelError, match="first/kernel.*NaN or infinite"):
        km.compress(model, km.Cluster(8))
    with pytest.raises(ModelError, match="nothing to cluster"):
        km.compress(keras.Sequential([keras.Input((2,)), layers.ReLU()]), km.Cluster(8))


def test_subclassed_models_and_embeddings_are_clustered_too():
    class Words(keras.Model):
        def __init__(self, **config):
            super().__init__(**config)
            self.table = layers.Embedding(50, 6)
            self.head = layers.Dense(2)

        def call(self, x):
            return self.head(keras.ops.mean(self.table(x), axis=1))

    model = Words()
    model(np.zeros((1, 4), "int32"))
    result = km.compress(model, km.Cluster(4), custom_objects={"Words": Words}).model
    assert distinct(to_numpy(result.table.embeddings)) == 4
    assert distinct(to_numpy(result.head.kernel)) <= 4
