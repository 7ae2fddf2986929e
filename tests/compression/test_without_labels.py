"""Fine-tuning and judging of models that train on inputs alone."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import DataError, KerasMemWarning
from tests.train_steps import BACKEND, update

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")


@keras.saving.register_keras_serializable("test_without_labels")
class Autoencoder(keras.Model):
    """Both steps take inputs alone, as in Keras's guide of the VAE."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner, self.outer = keras.layers.Dense(3), keras.layers.Dense(6)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.outer(self.inner(x))

    def _loss(self, x):
        return keras.ops.mean(keras.ops.square(self(x) - x))

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        loss = update(self.optimizer, self.trainable_variables, lambda: self._loss(x))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        self.tracker.update_state(self._loss(x))
        return {"loss": self.tracker.result()}


def built(kind):
    model = kind()
    model.compile("adam")
    model(X[:1])
    return model


def test_steps_of_the_models_own_take_inputs_alone():
    if BACKEND == "jax":  # whose guide has no such step
        return
    model = built(Autoencoder)
    model.fit(X, epochs=2, verbose=0)
    result = km.compress(
        model, km.Prune(0.5), data=X, validation_data=X, fine_tune_epochs=3
    )
    metrics = result.report.before.metrics
    assert metrics == pytest.approx(model.evaluate(X, verbose=0, return_dict=True))
    pruned, _ = apply_technique(km.Prune(0.5), model)
    pruned.compile("adam")
    untrained = pruned.evaluate(X, verbose=0, return_dict=True)
    assert result.report.after.metrics["loss"] < untrained["loss"]


def test_a_loss_inside_the_model_takes_no_labels():
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(6, activity_regularizer="l2")(inputs)
    model = keras.Model(inputs, outputs)
    model.compile("adam")
    result = km.compress(model, km.Prune(0.5), data=X, fine_tune_epochs=1)
    before = keras.ops.convert_to_numpy(model.layers[-1].kernel)
    after = keras.ops.convert_to_numpy(result.model.layers[-1].kernel)
    assert (after[after != 0] != before[after != 0]).any()


class Labeled(Autoencoder):
    """Its steps take labels, as most of the guides write them."""

    def train_step(self, data):
        x, _ = data
        return super().train_step(x)

    def test_step(self, data):
        x, _ = data
        return super().test_step(x)


def test_steps_that_take_labels_say_so():
    if BACKEND == "jax":  # whose guide has no such step
        return
    model = built(Labeled)
    with pytest.raises(
        DataError, match="without labels failed. Received: .* give data"
    ):
        km.compress(model, km.Prune(0.5), data=X, fine_tune_epochs=1)
    with pytest.warns(KerasMemWarning, match="validation_data has no labels"):
        km.compress(model, km.Prune(0.5), validation_data=X)


def test_without_data_nothing_is_asked():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])
    model.compile("adam", "mse")
    assert km.compress(model, km.Prune(0.5)).report.after.nonzero == 18


def test_a_loss_of_labels_still_needs_them():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])
    model.compile("adam", "mse")
    with pytest.raises(DataError, match="Fine-tuning needs labels"):
        km.compress(model, km.Prune(0.5), data=X, fine_tune_epochs=1)
