"""What the criteria that look at samples say of a channel, against NumPy."""

import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.channels.apply import prune_channels
from kerasmem.compression.channels.scores import weight_scores
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.channels import label_channels
from kerasmem.graph.channels.groups import find_groups
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import randomize
from tests.models import L, Subclassed, chain


def scores(model, criterion, data):
    """Return the scores of every group of a model."""
    found = label_channels(model)
    groups = find_groups(found.labels)
    choice = km.PruneChannels(0.5, criterion="taylor")
    every = weight_scores(model, found.labels.uses, groups.classes, choice, data)
    return [every[members] for members in groups.members]


def two_layers(activation=None):
    model = chain((4,), L.Dense(6, activation), L.Dense(2))
    randomize(model)
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("seed", range(2))
def test_taylor_is_the_square_of_gradient_times_weight_of_every_batch(seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(70, 4)).astype("float32")
    y = random.normal(size=(70, 2)).astype("float32")
    model = two_layers()
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    before = model.get_weights()
    kernel, bias, second, second_bias = before
    expected = np.zeros(6)
    for start in range(0, 70, 32):
        part, label = x[start : start + 32], y[start : start + 32]
        error = (part @ kernel + bias) @ second + second_bias - label
        gradient = part.T @ (2 * error / error.size @ second.T)
        expected += np.square(kernel * gradient).sum(0)
    (found,) = scores(model, "taylor", (x, y))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_the_channels_that_the_loss_feels_least_go():
    model = two_layers("tanh")
    kernel, bias, second, end = model.get_weights()
    second[[1, 4]] = 0.0  # large weights before, and nobody looks
    kernel[:, [1, 4]] = 9.0
    model.set_weights([kernel, bias, second, end])
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    choice = km.PruneChannels(0.4, criterion="taylor")
    small, _ = apply_technique(choice, model, Context((x, np.ones((64, 2), "float32"))))
    np.testing.assert_array_equal(
        to_numpy(small.layers[1].kernel), np.delete(kernel, [1, 4], 1)
    )


def test_km_compress_hands_its_data_to_the_criterion():
    model = two_layers("relu")
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    choice = km.PruneChannels(0.5, criterion="taylor")
    result = km.compress(model, choice, data=(x, x[:, :2]))
    assert result.model.layers[1].units == 3


def test_a_subclassed_model_is_scored_too():
    model = Subclassed()
    x = np.random.default_rng(0).integers(0, 11, (20, 5))
    model(x)
    model.compile("sgd", "mse")
    choice = km.PruneChannels(0.5, criterion="taylor")
    found = prune_channels(model, choice, (x, np.ones((20, 3), "float32")))
    assert found.error <= 1e-5
    assert found.model.count_params() < model.count_params()


@pytest.mark.one_backend
def test_missing_samples_labels_or_loss_are_errors():
    x = np.ones((8, 4), "float32")
    taylor = km.PruneChannels(0.5, criterion="taylor")
    for data, given in ((None, "None"), (x, "samples without labels")):
        with pytest.raises(ConfigError, match=f"data={given}.*labels as"):
            apply_technique(taylor, two_layers(), Context(data))
    bare = chain((4,), L.Dense(6), L.Dense(2))
    with pytest.raises(ModelError, match="has no loss, so it has no gradients"):
        apply_technique(taylor, bare, Context((x, x[:, :2])))
