"""Small models of keras.applications; all forty run in tests/benchmarks."""

import keras
import numpy as np
import pytest

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.apply import prune_channels
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import randomize

SMALL = {
    "MobileNet": {"alpha": 0.25},
    "MobileNetV2": {"alpha": 0.35},
    "MobileNetV3Small": {"alpha": 0.75, "minimalistic": True},
}


# What a backend makes of a smaller model is seen on random graphs.
@pytest.mark.one_backend
@pytest.mark.parametrize("name", SMALL)
def test_an_application_loses_half_of_its_channels_and_nothing_else(name, tmp_path):
    make = getattr(keras.applications, name)
    model = make(
        weights=None,
        input_shape=(32, 32, 3),
        classes=5,
        classifier_activation=None,
        **SMALL[name],
    )
    randomize(model)
    found = prune_channels(model, PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.unknown == {}
    assert 0.2 < found.model.count_params() / model.count_params() < 0.5
    found.model.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    x = np.random.default_rng(0).normal(size=(1, 32, 32, 3)).astype("float32")
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(found.model(x)))
