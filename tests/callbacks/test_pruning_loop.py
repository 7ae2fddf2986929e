"""Pruning in a training loop of one's own, with the order of calls of tfmot."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.prune import Polynomial
from kerasmem.errors import ConfigError, ModelError
from tests.models import L, chain

IN_STEPS = Polynomial(begin=0, end=6, unit="step", every=1)


def network():
    model = chain((8,), L.Dense(32, name="pruned"), L.Dense(2))
    model.compile("sgd", "mse")
    return model


def train_on_batch(model):
    x, y = np.ones((4, 8), "float32"), np.zeros((4, 2), "float32")
    return lambda: model.train_on_batch(x, y)


def over_a_tape(model):
    import tensorflow as tf

    x, y = np.ones((4, 8), "float32"), np.zeros((4, 2), "float32")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        model.optimizer.apply_gradients(pairs)

    return step


LOOPS = [train_on_batch]
LOOPS += [over_a_tape] if keras.backend.backend() == "tensorflow" else []


def sparsity(model):
    kernel = keras.ops.convert_to_numpy(model.get_layer("pruned").kernel)
    return float((kernel == 0).mean())


def attached(model, schedule):
    pruning = km.callbacks.Pruning(km.Prune(0.5, schedule=schedule))
    pruning.set_model(model)
    return pruning


@pytest.mark.parametrize("loop", LOOPS)
def test_a_schedule_in_steps_needs_no_epochs_and_no_numbers_of_batches(loop):
    model = network()
    update = loop(model)
    pruning = attached(model, IN_STEPS)
    pruning.on_train_begin()
    found = []
    for _ in range(2):  # tfmot hands in -1 for what it does not know
        pruning.on_epoch_begin(-1)
        for _ in range(5):
            pruning.on_train_batch_begin(-1)
            update()
            found.append(sparsity(model))
        pruning.on_epoch_end(-1)
    assert found == sorted(found)
    assert found[0] == 0.0
    assert found[-4:] == [0.5] * 4
    pruning.on_train_end()
    assert sparsity(model) == 0.5
    assert model.get_layer("pruned").kernel.constraint is None


def test_epochs_alone_tell_the_place_in_a_schedule_in_epochs():
    model = network()
    pruning = attached(model, Polynomial(begin=0, end=2, unit="epoch"))
    pruning.on_train_begin()
    found = []
    for epoch in range(3):
        pruning.on_epoch_begin(epoch)
        for batch in range(3):
            pruning.on_train_batch_begin(batch)
            train_on_batch(model)()
        logs = {}
        pruning.on_epoch_end(epoch, logs)
        found.append(sparsity(model))
        assert logs["sparsity"] == pytest.approx(found[-1], abs=0.01)
    assert found[0] == 0.0
    assert 0.0 < found[1] < found[2] == 0.5


def test_the_length_that_is_told_makes_shares_of_a_training():
    model = network()
    pruning = attached(model, Polynomial())
    pruning.set_params({"epochs": 2, "steps": 4})
    pruning.on_train_begin()
    for _ in range(8):
        pruning.on_train_batch_begin(-1)
        train_on_batch(model)()
    assert sparsity(model) == 0.5


def test_what_cannot_be_told_is_one_clear_word():
    model = network()
    pruning = attached(model, Polynomial())
    pruning.on_train_begin()
    with pytest.raises(
        ConfigError, match="needs the training length: pruning.set_params"
    ):
        pruning.on_train_batch_begin(0)
    pruning = attached(model, Polynomial(begin=0, end=2, unit="epoch"))
    pruning.on_train_begin()
    with pytest.raises(ConfigError, match="Received: a schedule in epochs"):
        pruning.on_train_batch_begin(0)
    with pytest.raises(ModelError, match=r"call model.compile\(optimizer\)"):
        attached(chain((8,), L.Dense(4), L.Dense(2)), IN_STEPS).on_train_begin()
    if keras.backend.backend() != "jax":
        return
    pruning = attached(network(), IN_STEPS)
    pruning.on_train_begin()
    for _ in range(2):
        pruning.on_train_batch_begin(0)
    with pytest.raises(ConfigError, match="stateless training loop"):
        pruning.on_train_batch_begin(0)
