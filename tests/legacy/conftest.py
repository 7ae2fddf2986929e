"""Models that tf_keras 2.21 and tfmot 0.8.1 wrote; `write_data.py` makes them anew."""

import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest

_ARCHIVE = Path(__file__).parent / "data/models.tar.xz"


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """The folder with `KIND.h5`, `KIND.keras`, perhaps `KIND`, and `KIND.npz`."""
    folder = tmp_path_factory.mktemp("legacy")
    with tarfile.open(_ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def recorded(written):
    """Return the inputs of a kind of model, and what tf_keras answered to them."""

    def read(kind):
        with np.load(written / f"{kind}.npz") as arrays:
            x = [arrays[name] for name in arrays if name.startswith("x")]
            y = [arrays[name] for name in arrays if name.startswith("y")]
        return (x if len(x) > 1 else x[0]), y

    return read


class Scale(keras.layers.Layer):
    """The Keras 3 form of the layer of one's own in `write_data.py`."""

    def __init__(self, start=1.0, **kwargs):
        super().__init__(**kwargs)
        self.start = start

    def build(self, shape):
        self.factor = self.add_weight(name="factor", shape=(shape[-1],))

    def call(self, x):
        return x * self.factor * self.start


@pytest.fixture
def own_layers():
    return {"Scale": Scale}
