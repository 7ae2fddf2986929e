"""Presets are recipes with a name, and what they promise holds."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import PRESETS, as_preset
from kerasmem.errors import ConfigError
from kerasmem.files.save import save_model
from tests.models import L, chain


@pytest.fixture
def model():
    model = chain((8,), L.Dense(64, activation="relu"), L.Dense(3))
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def data():
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    return x, x[:, :3]


def test_lossless_changes_no_output_and_makes_a_smaller_file(model, data, tmp_path):
    result = km.compress(model, "lossless")
    assert result.changes == ()
    assert result.report.steps == ()
    for name, write in {"stored": model.save, "small": result.save}.items():
        write(tmp_path / f"{name}.keras")
    save_model(model, tmp_path / "deflated.keras")
    sizes = [
        (tmp_path / f"{name}.keras").stat().st_size
        for name in ("small", "deflated", "stored")
    ]
    assert sizes == sorted(sizes)
    loaded = keras.models.load_model(tmp_path / "small.keras")
    for before, after in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(
        model.predict(data[0], verbose=0), loaded.predict(data[0], verbose=0)
    )


@pytest.mark.one_backend
def test_size_prunes_trains_rounds_and_codes(model, data):
    result = km.compress(model, "size", data=data, fine_tune_epochs=1, seed=0)
    assert result.report.steps == tuple(s.to_json() for s in PRESETS["size"].steps)
    assert result.coding == "entropy"
    assert (
        km.compress(model, "size", fine_tune_epochs=0, coding="deflate").coding
        == "deflate"
    )


@pytest.mark.one_backend
def test_latency_halves_the_multiplications(model):
    result = km.compress(model, "latency", fine_tune_epochs=0)
    assert result.model.layers[1].kernel.shape == (8, 32)
    assert result.coding == "deflate"


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["size", "latency", "balanced"])
def test_a_preset_trains_unless_told_not_to(model, name):
    with pytest.raises(ConfigError, match="epochs=3.*data=.*--fine-tune-epochs 0"):
        km.compress(model, name)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "sise",
            "Unknown preset 'sise'. Did you mean 'size'[?] Presets are size, latency",
        ),
        ("int8", r"Did you mean km.Quantize\('int8'\)\?"),
        ("prune", r"Next: steps=km.Prune\("),
        (
            "zzz",
            "Unknown preset 'zzz'. Presets are .*; a recipe is a file that ends in",
        ),
        ("a.txt", "Expected a recipe file that ends in"),
    ],
)
def test_a_name_that_is_no_preset_is_one_clear_error(model, name, text):
    with pytest.raises(ConfigError, match=text):
        km.compress(model, name)


@pytest.mark.one_backend
def test_what_is_no_name_means_its_steps():
    assert as_preset(km.Quantize()).steps == (km.Quantize(),)
    assert as_preset(km.Quantize()).epochs == 0
