"""A penalty that makes channels small, and leaves no trace."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.callbacks.channel_sparsity import ChannelPenalty
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import randomize
from tests.models import L

X = np.random.default_rng(0).normal(size=(32, 6, 6, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 2)).astype("float32")


def two_branches(dtype=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 3))
    x = L.BatchNormalization(name="norm")(L.Conv2D(8, 3, name="left")(inputs))
    x = L.ReLU()(x + L.Conv2D(8, 3, name="right")(inputs))
    x = L.Dense(5, name="hidden")(L.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, L.Dense(2, dtype="float32")(x))
    randomize(model)
    if dtype:
        small = keras.models.clone_model(
            model,
            clone_function=lambda layer: (
                type(layer).from_config({**layer.get_config(), "dtype": dtype})
                if isinstance(layer, keras.layers.Layer) and layer.weights
                else layer
            ),
        )
        small.set_weights(model.get_weights())
        model = small
    return model


def kernel(model, name):
    return to_numpy(model.get_layer(name).kernel)


def group_lasso(model):
    both = [np.square(kernel(model, name)).sum((0, 1, 2)) for name in ("left", "right")]
    hidden = np.square(kernel(model, "hidden")).sum(0)
    return np.sqrt(sum(both)).sum() + np.sqrt(hidden).sum()


def test_the_penalty_is_that_of_channels_that_go_together():
    model = two_branches()
    lasso = to_numpy(ChannelPenalty(model, "group_lasso")())
    np.testing.assert_allclose(lasso, group_lasso(model), rtol=1e-5)
    scales = to_numpy(ChannelPenalty(model, "batch_norm")())
    gamma = to_numpy(model.get_layer("norm").gamma)
    np.testing.assert_allclose(scales, np.abs(gamma).sum(), rtol=1e-5)


@pytest.mark.parametrize("jit", {False, keras.backend.backend() != "torch"})
def test_one_step_follows_the_slope_of_the_penalty(jit):
    steps = []
    for callbacks in ([], [km.callbacks.ChannelSparsity(0.1)]):
        model = two_branches()
        model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=jit)
        before = [kernel(model, name) for name in ("left", "right")]
        model.fit(X, Y, batch_size=32, verbose=0, callbacks=callbacks)
        steps.append([kernel(model, name) for name in ("left", "right")])
    size = np.sqrt(sum(np.square(k).sum((0, 1, 2)) for k in before))
    for plain, sparse, start in zip(*steps, before, strict=True):
        np.testing.assert_allclose(plain - sparse, 0.1 * start / size, atol=1e-5)


@pytest.mark.parametrize("penalty", ["group_lasso", "batch_norm"])
def test_channels_become_smaller_and_nothing_is_left_of_it(penalty):
    model = two_branches()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    sparsity = km.callbacks.ChannelSparsity(0.05, penalty=penalty)
    history = model.fit(X, Y, epochs=4, verbose=0, callbacks=[sparsity]).history
    assert history["channel_penalty"][-1] < history["channel_penalty"][0]
    assert all(variable.regularizer is None for variable in model.trainable_variables)
    assert model.losses == []


def test_in_half_precision_and_beside_a_regularizer_of_the_users_own():
    model = two_branches("mixed_bfloat16")
    mine = keras.regularizers.L2(0.5)
    model.get_layer("left").kernel.regularizer = mine
    model.compile(keras.optimizers.SGD(1e-9), "mse")
    plain = model.fit(X, Y, batch_size=32, verbose=0).history["loss"][0]
    history = model.fit(
        X, Y, batch_size=32, verbose=0, callbacks=[km.callbacks.ChannelSparsity(0.5)]
    ).history
    penalty = history["channel_penalty"][0]
    np.testing.assert_allclose(penalty, group_lasso(model), rtol=1e-5)
    np.testing.assert_allclose(history["loss"][0] - plain, 0.5 * penalty, rtol=0.02)
    assert model.get_layer("left").kernel.regularizer is mine


def test_a_fit_that_fails_leaves_no_penalty_behind():
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model = two_branches()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    sparsity = km.callbacks.ChannelSparsity(100.0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, verbose=0, callbacks=[sparsity, Fails()])
    loss = model.fit(X, Y, verbose=0).history["loss"][0]
    assert loss < 100
    assert all(variable.regularizer is None for variable in model.trainable_variables)


def test_bad_arguments_and_models_are_errors():
    with pytest.raises(ConfigError, match="above 0. Received: strength=0"):
        km.callbacks.ChannelSparsity(0)
    with pytest.raises(ConfigError, match="one of group_lasso, batch_norm"):
        km.callbacks.ChannelSparsity(penalty="l1")
    model = keras.Sequential([keras.Input((4,)), L.Dense(5), L.Dense(2)])
    with pytest.raises(ModelError, match="Received: penalty='batch_norm'"):
        ChannelPenalty(model, "batch_norm")
