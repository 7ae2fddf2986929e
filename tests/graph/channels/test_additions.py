"""Additions that Keras carries out along another axis on TensorFlow."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kerasmem as km
from kerasmem.compression.channels.apply import prune_channels
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import KerasMemWarning
from kerasmem.graph.channels.additions import wrong_axis
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import randomize
from tests.models import L

SIZES = st.integers(1, 4)
NOTHING_MAY_GO = pytest.mark.filterwarnings("ignore:PruneChannels removed nothing")
"""Where every smaller number of channels would be added along another axis."""


# Only TensorFlow's are wrong, and JAX compiles each.
@settings(max_examples=30 if keras.backend.backend() == "jax" else 300)
@given(st.lists(SIZES, min_size=1, max_size=4), st.data())
def test_keras_adds_wrongly_exactly_where_it_is_said(first, data):
    rank = data.draw(st.integers(1, len(first)))
    second = [data.draw(st.sampled_from([1, size])) for size in first[-rank:]]
    x = np.random.default_rng(0).normal(size=first).astype("float32")
    y = np.random.default_rng(1).normal(size=second).astype("float32")
    right = np.array_equal(to_numpy(keras.ops.add(x, y)), x + y)
    expected = keras.backend.backend() != "tensorflow" or not wrong_axis(first, second)
    assert right == expected


def test_the_other_operations_broadcast_as_numpy_does():
    x = np.arange(2 * 4 * 3 * 4, dtype="float32").reshape(2, 4, 3, 4) + 1
    y = np.arange(1.0, 5, dtype="float32").reshape(1, 4, 1, 1)
    assert wrong_axis(x.shape, y.shape) == 3
    for name in ("subtract", "multiply", "divide", "maximum", "minimum", "power"):
        found = to_numpy(getattr(keras.ops, name)(x, y))
        np.testing.assert_allclose(found, getattr(np, name)(x, y), rtol=1e-5)


def of_channels_first(filters):
    inputs = keras.Input((3, 6, 4))
    x = L.Conv2D(filters, 1, data_format="channels_first", name="wide")(inputs)
    x = L.DepthwiseConv2D(3, data_format="channels_first", padding="same")(x)
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(x)))
    randomize(model)
    return model


def can_run(model):
    """Return whether this CPU computes convolutions with channels first."""
    try:
        model.predict(np.zeros((1, 3, 6, 4), "float32"), verbose=0)
    except Exception as error:  # noqa: BLE001 - TensorFlow's, where oneDNN is off
        return "only supports the NHWC" not in str(error)
    return True


@NOTHING_MAY_GO
@pytest.mark.parametrize(("filters", "wanted"), [(8, 4), (10, 5), (4, 2)])
def test_no_number_of_channels_is_left_that_keras_confuses_with_columns(
    filters, wanted
):
    confused = keras.backend.backend() == "tensorflow" and 4 in (filters, wanted)
    found = prune_channels(of_channels_first(filters), km.PruneChannels(0.5))
    # A model of as many channels as columns is computed wrongly as it is, and stays.
    left = {4: 5, 2: 4}[wanted] if confused else wanted
    assert found.model.get_layer("wide").filters == left
    if can_run(found.model):
        assert found.error <= 1e-5
    else:
        assert np.isnan(found.error)
    told = [c.detail for c in found.changes if "may add along another axis" in c.detail]
    assert bool(told) == confused


def pooled(x):
    return x + L.GlobalAveragePooling1D(keepdims=True)(x)


def gated(x):
    return x + L.Dense(1)(x)


@NOTHING_MAY_GO
@pytest.mark.parametrize("added", [pooled, gated])
@pytest.mark.parametrize(("steps", "units"), [(5, 2), (3, 6), (2, 4)])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_sample_means_the_same_in_a_batch_of_every_size(added, steps, units, scope):
    inputs = keras.Input((steps, 4))
    model = keras.Model(inputs, L.Dense(2)(added(L.Dense(units)(inputs))))
    randomize(model)
    choice = km.PruneChannels(0.5, scope=scope, round_to=1)
    small, _ = apply_technique(choice, model)
    x = np.random.default_rng(0).normal(size=(7, steps, 4)).astype("float32")
    whole = to_numpy(small(x))
    for size in range(1, 7):
        np.testing.assert_allclose(to_numpy(small(x[:size])), whole[:size], atol=1e-5)


def test_a_vector_and_a_number_for_each_sample_stay_on_tensorflow():
    """Keras adds them wrongly in a batch of as many samples as there are channels."""
    inputs = keras.Input((4,))
    y = L.Dense(6)(inputs)
    model = keras.Model(inputs, L.Dense(2)(y + L.Dense(1)(inputs)))
    randomize(model)
    stays = keras.backend.backend() == "tensorflow"
    why = pytest.warns(
        KerasMemWarning, match="removed nothing: with fewer channels, keras.ops"
    )
    with why if stays else nullcontext():
        found = prune_channels(model, km.PruneChannels(0.5))
    assert found.model.count_params() == (49 if stays else 28)
