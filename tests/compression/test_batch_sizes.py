"""Models that record the size of a batch: only stateful layers limit the samples."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, DataError
from kerasmem.graph.activations import peak_activation_bytes
from tests.models import L

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 4)).astype("float32")
Y = X[:, :2]
SERIES = RANDOM.normal(size=(36, 3, 2)).astype("float32")


def sequential(*inputs):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([*inputs, L.Dense(8, "relu"), L.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=32, verbose=0)
    return model


@pytest.fixture(scope="module")
def deferred():
    """Keras records the first batch of 32 samples and takes any other size."""
    model = sequential()
    if model.inputs[0].shape[0] is None:  # TensorFlow records some of them
        model = keras.Sequential([*model.layers])
        model.build((32, 4))
        model.compile("sgd", "mse")
    assert model.inputs[0].shape == (32, 4)
    assert model.predict(X[:5], verbose=0).shape == (5, 2)
    return model


def stateful():
    keras.utils.set_random_seed(0)
    x = keras.Input(batch_shape=(4, 3, 2))
    states = L.SimpleRNN(3, stateful=True)(x)
    model = keras.Model(x, L.Dense(2)(L.Dense(32, "relu")(states)))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("count", [64, 50])
def test_a_sequential_without_input_takes_any_number_of_samples(deferred, count):
    samples = (X[:count], Y[:count])
    result = km.compress(
        deferred,
        [km.Prune(0.5), km.Quantize("int8-static")],
        data=samples,
        validation_data=samples,
        fine_tune_epochs=1,
    )
    loss = float(np.mean((deferred.predict(X[:count], verbose=0) - Y[:count]) ** 2))
    assert result.report.before.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert result.model.predict(X[:5], verbose=0).shape == (5, 2)


def test_a_sequential_without_input_is_measured_for_the_requested_batch(deferred):
    assert peak_activation_bytes(deferred, 1) == 4 * (4 + 8)
    declared = sequential(keras.Input((4,)))
    peaks = [km.estimate_memory(m, 48).peak_bytes for m in (deferred, declared)]
    assert peaks[0] == peaks[1]


def test_a_sequential_without_input_is_a_teacher(deferred):
    student = sequential(keras.Input((4,)))
    copy = km.distill(deferred, student, (X[:50], Y[:50]), verbose=0)
    assert copy.predict(X[:3], verbose=0).shape == (3, 2)


@pytest.mark.one_backend
def test_a_sequential_without_input_is_exported(deferred, tmp_path):
    file = tmp_path / "model.tflite"
    km.export(deferred, file, samples=X[:4])
    assert file.exists()


@pytest.mark.one_backend
def test_a_search_for_the_batch_size_takes_a_sequential_without_input(deferred):
    with pytest.raises(ConfigError, match="too small for the variables of the model"):
        km.find_batch_size(deferred, 100)


def test_stateful_layers_get_batches_of_their_size():
    model, labels = stateful(), SERIES[:, -1]
    before = [w.numpy() for w in model.weights]
    result = km.compress(
        model,
        km.Quantize("int8-static"),
        data=(SERIES, labels),
        validation_data=(SERIES, labels),
    )
    found = result.report.before.metrics["loss"]
    model.layers[1].reset_states()
    outputs = model.predict(SERIES, batch_size=4, verbose=0)
    assert found == pytest.approx(float(np.mean((outputs - labels) ** 2)), rel=1e-5)
    assert result.report.samples == 36
    for old, new in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(old, new.numpy())


def test_samples_that_are_no_multiple_of_a_stateful_batch_are_refused():
    data = (SERIES[:34], SERIES[:34, -1])
    with pytest.raises(DataError, match=r"multiple of 4 samples\. Received: 34"):
        km.compress(stateful(), km.Prune(0.5), validation_data=data)
