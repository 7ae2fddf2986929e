"""`kerasmem compress --low-memory`, and commands that read no weight."""

import sys
import zipfile

import numpy as np
import pytest

import kerasmem as km


@pytest.mark.one_backend
def test_a_file_is_compressed_from_file_to_file(kerasmem, written):
    model = written / "model.keras"
    found = kerasmem(
        f"compress {model} -o low.keras --quantize int8 --low-memory --json"
    ).json
    kerasmem(f"compress {model} -o whole.keras --quantize int8")
    low, whole = (km.load_model(f"{name}.keras") for name in ("low", "whole"))
    x = np.ones((2, 6), "float32")
    np.testing.assert_array_equal(low.predict(x), whole.predict(x))
    assert found["report"]["after"]["latency_ms"] is None
    assert found["report"]["before"]["file_bytes"] == model.stat().st_size
    assert found["report"]["before"]["parameters"] == low.count_params()
