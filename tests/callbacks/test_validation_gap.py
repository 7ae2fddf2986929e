"""A validation far from training is reported with its probable cause."""

import re

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.callbacks.validation_gap import ValidationGap, lag

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(256, 16)) + 6).astype("float32")
Y = (X[:, 0] > X[:, 1]).astype("int32")


def classifier(*layers):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((16,)), *layers, keras.layers.Dense(2, name="classes")]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model


def gaps(model, data, validation_data, **options):
    monitor = km.callbacks.GradientMonitor()
    model.optimizer.learning_rate = 0.01
    history = model.fit(
        *data,
        validation_data=validation_data,
        callbacks=[monitor],
        verbose=0,
        **options,
    ).history
    found = [each for each in monitor.findings if each.kind == "validation gap"]
    return found, history


def test_lagging_statistics_are_the_cause_of_a_bad_validation():
    norm = keras.layers.BatchNormalization(momentum=0.999, name="norm")
    model = classifier(norm, keras.layers.Dense(16, "tanh"))
    (finding,), history = gaps(model, (X, Y), (X, Y), epochs=6, batch_size=32)
    assert history["accuracy"][-1] > 0.9
    assert history["val_accuracy"][-1] < history["accuracy"][-1] - 0.2
    assert (finding.layer, finding.layers) == ("norm", ("norm",))
    assert "Probable cause: the moving statistics of BatchNormalization lag" in (
        finding.text
    )
    # NumPy: the share of the initial values after so many batches.
    batches = 8 * (finding.epoch + 1)
    left = 0.999**batches
    distance = np.mean(left * np.abs(X.mean(0)) / X.std(0))
    (reported,) = re.findall(r"by ([\d.]+) standard deviations", finding.text)
    assert float(reported) == pytest.approx(distance, rel=0.05)
    # The advice helps: the validation is that of the training.
    small = km.compress(model, km.ReestimateBatchNorm(), data=(X, Y)).model
    _, accuracy = small.evaluate(X, Y, verbose=0)
    assert accuracy > 0.9


@pytest.mark.one_backend
def test_statistics_that_keep_up_are_no_finding():
    model = classifier(keras.layers.BatchNormalization(momentum=0.5))
    found, history = gaps(model, (X, Y), (X, Y), epochs=6, batch_size=32)
    assert found == []
    assert history["val_accuracy"][-1] > 0.9


@pytest.mark.one_backend
def test_a_frozen_normalization_is_not_the_cause():
    norm = keras.layers.BatchNormalization(momentum=0.999, trainable=False)
    found, _ = gaps(classifier(norm), (X, Y), (X, Y), epochs=6, batch_size=32)
    assert found == []


@pytest.mark.one_backend
def test_the_statistics_of_the_batches_follow_from_two_readings():
    momentum, mean, variance = 0.9, np.zeros(3), np.ones(3)
    batches = RNG.normal(2, 3, size=(20, 64, 3))
    before = mean, variance
    for batch in batches:
        mean = momentum * mean + (1 - momentum) * batch.mean(0)
        variance = momentum * variance + (1 - momentum) * batch.var(0)
    weights = momentum ** np.arange(19, -1, -1)
    means, variances = (
        np.average(each, axis=0, weights=weights)
        for each in (batches.mean(1), batches.var(1))
    )
    gap, ratio = lag(before, (mean, variance), momentum**20)
    assert gap == pytest.approx(np.mean(np.abs(mean - means) / np.sqrt(variances)))
    expected = np.exp(np.mean(np.abs(np.log(variance / variances))))
    assert ratio == pytest.approx(expected)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "losses",
    [
        [(1.0, 1.1), (0.5, 0.7), (0.3, 0.5), (0.2, 0.45), (0.15, 0.44), (0.1, 0.46)],
        [(1.0, 3.0)] * 6,  # another scale, and nothing rises
        [(0.5, 0.2), (0.4, 0.3), (0.3, 0.35), (0.28, 0.4), (0.27, 0.5)],  # dropout
        [(1.0, float("nan"))] * 6,
        [(0.0, 0.0)] * 6,
    ],
)
def test_ordinary_losses_are_no_finding(losses):
    gap, model = ValidationGap("Monitor"), classifier()
    for epoch, (loss, val_loss) in enumerate(losses):
        gap.start_epoch(model)
        logs = {"loss": loss, "val_loss": val_loss}
        assert gap.after_epoch(epoch, logs, model, 10) == []
