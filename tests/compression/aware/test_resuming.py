"""What Keras saves of a training is all of it: it goes on as if never killed."""

import keras
import numpy as np
import pytest

import kerasmem as km
from tests.compression.aware.nets import X, Y, aware, compiled, network, ranges, scales

EPOCHS = 4


class KilledError(Exception):
    pass


class Kill(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self._epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self._epoch:
            raise KilledError


def made():
    """Return an aware model as a script would make it, each time it is run."""
    model = compiled(network(), optimizer=keras.optimizers.Adam(0.01))
    return aware(model, "int4", activations=True, learned_scales=True)


def train(model, *callbacks, begin=0):
    frozen = km.callbacks.FreezeBatchNorm(0.5)
    model.fit(
        *(X, Y),
        batch_size=16,
        shuffle=False,
        verbose=0,
        epochs=EPOCHS,
        initial_epoch=begin,
        callbacks=[frozen, *callbacks],
    )
    return model


def killed(epoch, *callbacks):
    with pytest.raises(KilledError):
        train(made(), *callbacks, Kill(epoch))


def check_equal(one, two):
    names = [variable.path for variable in one.weights]
    assert any("range" in name for name in names)
    assert any("scale_change" in name for name in names)
    for name, a, b in zip(names, one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.fixture(scope="module")
def whole():
    return train(made())


@pytest.mark.parametrize("end", [1, 3])
def test_a_file_of_the_model(whole, end, tmp_path):
    path = tmp_path / "{epoch}.keras"
    saving = keras.callbacks.ModelCheckpoint(path)
    killed(end, saving)
    again = keras.models.load_model(tmp_path / f"{end}.keras")
    check_equal(train(again, begin=end), whole)


def test_a_file_of_the_weights_and_the_optimizer(whole, tmp_path):
    saving = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}.weights.h5", save_weights_only=True
    )
    killed(2, saving)
    again = made()
    # Keras builds the optimizer in the first step, and loads what is built.
    again.optimizer.build(again.trainable_variables)
    again.load_weights(tmp_path / "2.weights.h5")
    check_equal(train(again, begin=2), whole)


def test_keras_s_own_backup(whole, tmp_path):
    backup = keras.callbacks.BackupAndRestore
    killed(2, backup(tmp_path / "backup", double_checkpoint=True))
    check_equal(train(made(), backup(tmp_path / "backup")), whole)


def test_a_checkpoint_of_tensorflow_s_own(whole, backend, tmp_path):
    if backend != "tensorflow":
        return
    import tensorflow as tf

    weights = whole.get_weights()
    path = tf.train.Checkpoint(model=whole).save(tmp_path / "checkpoint")
    again = made()
    tf.train.Checkpoint(model=again).restore(path)
    for a, b in zip(again.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_best_weights_have_their_ranges_and_scales():
    model, seen = made(), []
    worse = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append((ranges(model), scales(model))),
    )
    # Higher is better, and the first epoch's is the highest.
    stop = keras.callbacks.EarlyStopping(
        "loss", mode="max", restore_best_weights=True, patience=2
    )
    history = train(model, worse, stop).history.history["loss"]
    assert history[0] == max(history)
    best = seen[1]
    assert best[0] == ranges(model) != seen[-1][0]
    for name, expected in best[1].items():
        np.testing.assert_array_equal(scales(model)[name], expected)
        assert not np.array_equal(seen[-1][1][name], expected)
