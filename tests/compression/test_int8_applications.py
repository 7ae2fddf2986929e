"""A sample of the benchmark: one whole net of keras.applications."""

import keras
import pytest

import kerasmem as km
from tests.benchmarks.bench_int8_applications import calibrated, layer_errors


# JAX takes half a minute to compile the shapes of a net, not of what a backend does to
# a layer: of every kind of layer that is compared on each.
@pytest.mark.one_backend
def test_mobilenet_v2_shrinks_and_every_layer_stays_close(tmp_path):
    model, images = calibrated("MobileNetV2", size=32)
    model.save(tmp_path / "float.keras")
    km.compress(model, km.Quantize("int8")).save(tmp_path / "int8.keras")
    float_bytes, int8_bytes = (
        (tmp_path / f"{name}.keras").stat().st_size for name in ("float", "int8")
    )
    assert float_bytes / int8_bytes >= 3.5
    small = keras.models.load_model(tmp_path / "int8.keras")
    errors = layer_errors(model, small, images)
    assert len(errors) == 53
    assert max(errors.values()) <= 0.015
