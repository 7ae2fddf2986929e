"""A loss that depends on several samples keeps a batch whole."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from kerasmem.errors import ConfigError, KerasMemWarning, OutOfMemoryError
from kerasmem.memory.fit import fit
from tests.memory.fit.failing import Fails, Shortage
from tests.memory.fit.test_micro_batches import compiled, in_parts, weights

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 6)).astype("float32")
Y = (RNG.uniform(size=(32, 4)) > 0.5).astype("float32")
STEPS = {"batch_size": 32, "shuffle": False, "verbose": 0}


def contrastive(y_true, y_pred):
    one, other = ops.split(y_pred, 2, axis=-1)
    logits = ops.matmul(one, ops.transpose(other))
    own = ops.arange(ops.shape(logits)[0])
    return keras.losses.sparse_categorical_crossentropy(own, logits, from_logits=True)


def triplet(y_true, y_pred):
    distances = ops.sum(ops.square(y_pred[:, None] - y_pred[None]), axis=-1)
    alike = ops.equal(y_true[:, :1], ops.transpose(y_true[:, :1]))
    hardest = ops.max(ops.where(alike, distances, 0.0), axis=1)
    nearest = ops.min(ops.where(alike, 1e3, distances), axis=1)
    return ops.relu(hardest - nearest + 1.0)


def concordance(y_true, y_pred):
    a, b = ops.mean(y_true), ops.mean(y_pred)
    both = ops.mean((y_true - a) * (y_pred - b))
    return 1.0 - 2.0 * both / (ops.var(y_true) + ops.var(y_pred) + ops.square(a - b))


def ranking(y_true, y_pred):
    margins = y_pred[:, None] - y_pred[None]
    ordered = ops.cast(y_true[:, None] > y_true[None], "float32")
    return ops.sum(ordered * ops.softplus(-margins)) / (1.0 + ops.sum(ordered))


class Spread(layers.Layer):
    """Adds a loss of the whole batch."""

    def call(self, inputs):
        self.add_loss(-ops.mean(ops.var(inputs, axis=0)))
        return inputs


class Centered(layers.Layer):
    """Subtracts the mean of the batch."""

    def call(self, inputs):
        return inputs - ops.mean(inputs, axis=0, keepdims=True)


class Noise(layers.Layer):
    """Draws random numbers in inference too, and adds a loss of each sample."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs):
        noise = keras.random.normal(ops.shape(inputs), seed=self.seed)
        drawn = inputs + ops.cast(noise, inputs.dtype)
        self.add_loss(ops.mean(ops.square(ops.cast(drawn, "float32"))))
        return drawn


def network(loss, *between, **options):
    keras.utils.set_random_seed(2)
    hidden = layers.Dense(8, "tanh")
    stack = [keras.Input((6,)), hidden, *between, layers.Dense(4, "sigmoid")]
    options = {"optimizer": keras.optimizers.SGD(0.1), "metrics": None} | options
    return compiled(keras.Sequential(stack), loss=loss, **options)


LOSSES = {
    "contrastive": contrastive,
    "triplet": triplet,
    "concordance": concordance,
    "ranking": ranking,
    "dice": keras.losses.Dice(),
    "tversky": keras.losses.Tversky(),
    "circle": keras.losses.Circle(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_several_samples_is_refused_before_the_first_update(
    monkeypatch, name
):
    model = network(LOSSES[name])
    before = weights(model)
    y = RNG.integers(0, 3, 32) if name == "circle" else Y
    with pytest.raises(ConfigError, match=f"loss '{name}' depends.*km.rematerialize"):
        fit(model, X, y, **STEPS, **in_parts(monkeypatch, 4))
    for own, value in zip(weights(model), before, strict=True):
        np.testing.assert_array_equal(own, value)


@pytest.mark.parametrize("loss", [keras.losses.Dice(), "tversky", "dice"])
def test_a_first_batch_without_foreground_does_not_decide(monkeypatch, loss):
    """There the Dice loss of a batch is that of its samples."""
    with pytest.raises(ConfigError, match="depends on several samples"):
        fit(network(loss), X, np.zeros_like(Y), **STEPS, **in_parts(monkeypatch, 4))


def test_dice_by_sample_is_split(monkeypatch):
    model = network(keras.losses.Dice(axis=-1))
    with pytest.warns(KerasMemWarning, match="in 4 micro-batches"):
        fit(model, X, Y, **STEPS, **in_parts(monkeypatch, 4))


@keras.saving.register_keras_serializable("tests")
class CoupledInTraining(keras.Sequential):
    """Compares the samples of a batch in training only."""

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        return loss + ops.var(ops.mean(y_pred, axis=-1)) if training else loss


def test_a_loss_of_several_samples_in_training_only_is_refused(monkeypatch):
    model = CoupledInTraining([keras.Input((6,)), layers.Dense(4, "sigmoid")])
    with pytest.raises(ConfigError, match="loss 'compute_loss' depends"):
        fit(compiled(model, loss="mse", metrics=None), X, Y, **STEPS,
            **in_parts(monkeypatch, 4))  # fmt: skip


@pytest.mark.parametrize("layer", [Spread, Centered])
def test_a_layer_that_couples_samples_is_refused(monkeypatch, layer):
    with pytest.raises(ConfigError, match="depends on several samples"):
        fit(network("mse", layer()), X, Y, **STEPS, **in_parts(monkeypatch, 4))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_random_numbers_and_batch_statistics_are_no_false_alarm(monkeypatch, policy):
    keras.config.set_dtype_policy(policy)
    try:
        between = [layers.BatchNormalization(), Noise(), layers.Dropout(0.5)]
        model = network("binary_crossentropy", *between)
    finally:
        keras.config.set_dtype_policy("float32")
    with (
        pytest.warns(KerasMemWarning, match="in 4 micro-batches"),
        pytest.warns(KerasMemWarning, match="BatchNormalization"),
    ):
        fit(model, X, Y, **STEPS, **in_parts(monkeypatch, 4))


def test_a_step_that_fails_is_not_split_with_a_loss_of_several_samples():
    options = {}
    if keras.backend.backend() == "tensorflow":
        options["jit_compile"] = False  # XLA cannot call Python
    model = network(keras.losses.Dice(), Fails(Shortage(at=[0]), "forward"), **options)
    with pytest.raises(OutOfMemoryError, match="loss 'dice' depends") as raised:
        fit(model, X, Y, **STEPS)
    assert raised.value.kind == "device"
    assert raised.value.post_mortem.fitting_micro_batches is None
