"""BatchNormalization that trains with its moving statistics from an epoch on."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from tests.compression.aware.nets import (
    JIT,
    X,
    Y,
    aware,
    called_in_training,
    compiled,
    fit,
    network,
)


def moving_variance(model):
    return to_numpy(model.get_layer("norm").moving_variance)


def is_plain(model):
    return not any("call" in vars(layer) for layer in sublayers(model))


@pytest.mark.parametrize("is_aware", [False, True])
def test_it_is_frozen_when_it_is_time(is_aware):
    seen = []
    model = compiled(network(), JIT[-1], keras.optimizers.SGD(0.0))
    model = aware(model) if is_aware else model
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(moving_variance(model))
    )
    fit(model, km.callbacks.FreezeBatchNorm(0.5), note, epochs=4)
    assert not np.array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[1], seen[3])
    assert is_plain(model)
    fit(model, km.callbacks.FreezeBatchNorm(1), note, epochs=1)
    assert not np.array_equal(seen[3], seen[4])
    # One that goes on behind the time is frozen at once.
    fit(model, km.callbacks.FreezeBatchNorm(0.5), note, epochs=4, initial_epoch=2)
    np.testing.assert_array_equal(seen[4], seen[6])


def test_scale_and_offset_go_on_training():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.1))
    before = to_numpy(model.get_layer("norm").gamma)
    fit(model, km.callbacks.FreezeBatchNorm(0))
    assert not np.array_equal(before, to_numpy(model.get_layer("norm").gamma))


def test_one_that_inference_trains_is_never_frozen():
    model = called_in_training()
    y = np.zeros((32, 6, 6, 4), "float32")
    compiled(model, optimizer=keras.optimizers.SGD(0.0))
    before = moving_variance(model)
    model.fit(X, y, verbose=0, callbacks=[km.callbacks.FreezeBatchNorm(0)])
    assert not np.array_equal(moving_variance(model), before)


class Broken(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize("use", ["fit", "save", "detach"])
def test_nothing_is_left_after_a_fit_that_was_broken_off(use, tmp_path):
    model, callback = compiled(network()), km.callbacks.FreezeBatchNorm(0)
    with pytest.raises(KeyboardInterrupt):
        fit(model, callback, Broken())
    before = moving_variance(model)
    if use == "fit":
        fit(model)
        assert not np.array_equal(moving_variance(model), before)
    elif use == "save":
        model.save(tmp_path / "m.keras")
    else:
        callback.detach()
    assert is_plain(model)


def test_it_can_be_detached_in_the_middle_of_an_epoch():
    model, callback = compiled(network(), JIT[-1]), km.callbacks.FreezeBatchNorm(0)

    class Detach(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                callback.detach()

    before = moving_variance(model)
    model.fit(X, Y, batch_size=16, verbose=0, callbacks=[callback, Detach()])
    assert not np.array_equal(moving_variance(model), before)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("after", "text"),
    [(2, "at most 1.*after=2"), (True, "be a number.*after=True"), (None, "=None")],
)
def test_a_share_that_is_none(after, text):
    with pytest.raises(ConfigError, match=text):
        km.callbacks.FreezeBatchNorm(after)
