"""A file of int8-static with layers that computed with integers, as it was written."""

from pathlib import Path

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ModelError

DATA = Path(__file__).parent / "data"
X = np.random.default_rng(5).normal(size=(64, 6, 6, 3)).astype("float32")[:4]


def test_an_old_file_gives_its_codes_within_a_step(tmp_path):
    model = km.load_model(DATA / "int8_static.keras")
    outputs = model.predict(X, verbose=0)
    with np.load(DATA / "int8_static.npz") as file:
        expected = dict(file)
    equal = []
    for name, values in outputs.items():
        scale, zero_point = expected[f"{name}_scale"]
        apart = values / scale + zero_point - expected[name].astype("float64")
        assert np.abs(apart).max() < 1.01, name
        equal.append(np.abs(apart) < 0.01)
    assert len(outputs) == 12
    assert np.concatenate([each.ravel() for each in equal]).mean() > 0.98
    km.save_model(model, tmp_path / "again.keras")
    again = km.load_model(tmp_path / "again.keras").predict(X, verbose=0)
    for name, values in outputs.items():
        np.testing.assert_allclose(again[name], values, atol=1e-6)


@pytest.mark.one_backend
def test_an_old_file_has_no_float_form():
    model = keras.models.load_model(DATA / "int8_static.keras")
    with pytest.raises(ModelError, match="has nothing to dequantize"):
        km.dequantize(model)
