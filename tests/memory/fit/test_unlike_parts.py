"""Models whose parts are not alike: gradients that some lack, states of samples."""

import keras
import numpy as np
import pytest
from keras import layers

from kerasmem.errors import KerasMemWarning, OutOfMemoryError
from kerasmem.memory.fit import fit
from tests.memory.fit.failing import Fails, Shortage
from tests.memory.fit.test_micro_batches import in_parts, weights


class OfLargeParts(keras.Model):
    """Adds a bias if there are more than four samples."""

    def __init__(self):
        super().__init__()
        self.bias = self.add_weight(shape=(), initializer="zeros")
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs):
        scaled = keras.ops.multiply(inputs, self.scale)
        return scaled + self.bias if inputs.shape[0] > 4 else scaled


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_a_gradient_that_the_last_part_has_not_is_the_sum_of_the_others(
    monkeypatch, run_eagerly
):
    model = OfLargeParts()
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.MeanAbsoluteError(),
        run_eagerly=run_eagerly,
    )
    x = np.ones((29, 1), "float32")
    data = x, 0 * x
    with pytest.warns(KerasMemWarning, match="in 6 micro-batches"):
        fit(model, *data, batch_size=29, verbose=0, **in_parts(monkeypatch, 6))
    # Parts of 5, 5, 5, 5, 5 and 4: of the last only the scale has a gradient.
    np.testing.assert_allclose(weights(model), [-25 / 29, 0.0], atol=1e-6)


def stateful(shortage):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(8, 3, 2)),
            layers.SimpleRNN(4, stateful=True, name="remembering"),
            Fails(shortage, "forward"),
            layers.Dense(1),
        ]
    )
    jit = {"jit_compile": False} if keras.backend.backend() == "tensorflow" else {}
    model.compile("sgd", "mse", **jit)
    return model


SERIES = {
    "x": np.random.default_rng(0).normal(size=(24, 3, 2)).astype("float32"),
    "y": np.ones((24, 1), "float32"),
}
STEPS = {"batch_size": 8, "shuffle": False, "verbose": 0}


def test_a_state_of_samples_makes_a_batch_whole_and_is_said():
    model = stateful(Shortage(at=[1]))
    text = "Next: smaller batches .the layer 'remembering' is stateful"
    with pytest.raises(OutOfMemoryError, match=text) as raised:
        fit(model, **SERIES, **STEPS)
    assert raised.value.kind == "device"
    assert raised.value.post_mortem.fitting_micro_batches is None


def test_a_batch_with_states_of_samples_that_fits_is_trained_as_ever(monkeypatch):
    expected, found = stateful(Shortage()), stateful(Shortage())
    expected.fit(**SERIES, **STEPS)
    limit = in_parts(monkeypatch, 2)
    with pytest.warns(KerasMemWarning, match="as a whole: the layer 'remembering'"):
        fit(found, **SERIES, **STEPS, **limit)
    for ours, theirs in zip(weights(found), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
