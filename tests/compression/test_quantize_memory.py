"""A forward pass takes less memory quantized than float, by each backend's figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "forward_peak.py"
MODES = {"tensorflow": ("eager", "graph"), "jax": ("graph",), "torch": ("eager",)}


def peaks(model, mode, *schemes):
    found = subprocess.run(
        [sys.executable, SCRIPT, model, mode, *schemes],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", ["dense", "deep"])
def test_neither_one_large_layer_nor_many_are_float_at_once(model, backend):
    for mode in MODES[backend]:
        found = peaks(model, mode, "float", "int8", "int4", "int8-dynamic")
        # Codes are a quarter, and a part of the weights is float for a moment.
        assert found["int8"] < 0.6 * found["float"], found
        assert found["int8-dynamic"] < 0.6 * found["float"], found
        assert found["int4"] < 0.4 * found["float"], found
