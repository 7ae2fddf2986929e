"""int8-static in models whose graph cannot be opened."""

import keras
import keras_hub
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError, DataError
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import FAMILIES, apart, samples
from tests.masked import called

RNG = np.random.default_rng(0)


class Twice(keras.Model):
    """A convolution and a Dense in a `call` that cannot be read."""

    def __init__(self, **options):
        super().__init__(**options)
        self.conv = keras.layers.Conv1D(6, 3, activation="relu")
        self.head = keras.layers.Dense(4)

    def call(self, inputs):
        return self.head(self.conv(inputs))


@pytest.fixture
def subject():
    keras.utils.set_random_seed(0)
    model = Twice()
    x = RNG.normal(size=(64, 9, 5)).astype("float32")
    model(x)
    return model, x


def codes_of(kernel):
    """Return int8 codes of a kernel and the scale of each output channel."""
    most = np.abs(kernel).max(axis=tuple(range(kernel.ndim - 1)))
    return np.round(kernel / (most / 127)), most / 127


def by_hand(model, x, known):
    """Return what integers give in ranges of the samples `known`, in NumPy."""
    conv, head = model.conv, model.head

    def windows(x):
        return np.stack([x[:, n : n + 7] for n in range(3)], axis=2)

    def product(x, kernel, scale):
        codes, own = codes_of(kernel)
        rounded = np.clip(np.round(x / scale), -127, 127)
        return (
            rounded.reshape(*x.shape[:2], -1)
            @ codes.reshape(-1, len(own))
            * (scale * own)
        )

    kernel = to_numpy(conv.kernel)
    exact = windows(known).reshape(len(known), 7, -1) @ kernel.reshape(-1, 6)
    inside = np.maximum(exact + to_numpy(conv.bias), 0)
    y = product(windows(x), kernel, np.abs(known).max() / 127) + to_numpy(conv.bias)
    y = product(np.maximum(y, 0), to_numpy(head.kernel), inside.max() / 127)
    return y + to_numpy(head.bias)


def test_products_inside_compute_with_ranges_of_the_samples(subject, tmp_path):
    model, x = subject
    before = model.get_weights()
    result = km.compress(model, km.Quantize("int8-static"), data=x, verbose=0)
    beyond = 2 * x  # and is cut off at the ends of the ranges
    for new in (x, beyond):
        expected = by_hand(model, new, x)
        np.testing.assert_allclose(
            to_numpy(result.model(new)), expected, rtol=1e-4, atol=1e-4
        )
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    details = [c.detail for c in result.changes if c.weight.endswith("kernel")]
    assert all("int8 inputs, static" in detail for detail in details)
    result.save(tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras", custom_objects={"Twice": Twice})
    np.testing.assert_allclose(
        to_numpy(again(beyond)), to_numpy(result.model(beyond)), atol=1e-6
    )


@pytest.mark.one_backend
def test_the_calibration_chooses_the_ranges(subject):
    model, x = subject
    x = x.copy()
    x[0, 0, 0] = 1000.0
    scales = []
    for calibration in (
        km.Calibration("min-max"),
        km.Calibration("percentile", percentile=99.0),
    ):
        scheme = km.Quantize("int8-static", calibration=calibration)
        found = km.compress(model, scheme, data=x, verbose=0).model
        scales.append(found.conv._kernel.activation_scale)
    assert scales[0] == pytest.approx(1000 / 127)
    assert scales[1] < 10 / 127


@pytest.mark.one_backend
def test_what_is_left_out_stays_float_and_bad_data_is_refused(subject):
    model, x = subject
    scheme = km.Quantize("int8-static", exclude="dense")
    found = km.compress(model, scheme, data=x, verbose=0).model
    assert [v.activation_scale is None for v in quantized_variables(found)] == [False]
    with pytest.raises(ConfigError, match="data="):
        km.compress(model, km.Quantize("int8-static"), verbose=0)
    x = np.where(x > 2, np.nan, x)
    with pytest.raises(DataError, match="NaN or infinity"):
        km.compress(model, km.Quantize("int8-static"), data=x, verbose=0)


@pytest.mark.parametrize("family", ["Gemma", "Bert"])
def test_a_model_of_keras_hub_stays_one(family, tmp_path):
    keras.utils.set_random_seed(1)
    model = FAMILIES[family]()
    x = samples(model, 32)
    result = km.compress(model, km.Quantize("int8-static"), data=x, verbose=0)
    assert type(result.model) is not type(model)
    assert isinstance(result.model, getattr(keras_hub.models, type(model).__name__))
    every = quantized_variables(result.model)
    assert sum(v.activation_scale is not None for v in every) >= 0.8 * len(every)
    assert apart(called(result.model, x), called(model, x)) < 0.05
    result.save(tmp_path / "a.keras")
    again = km.load_model(tmp_path / "a.keras", compile=False)
    assert apart(called(again, x), called(result.model, x)) < 1e-5
