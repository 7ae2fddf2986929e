"""A pass or a step takes less memory quantized, by each backend's own figures."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "forward_peak.py"
MODES = {"tensorflow": ("eager", "graph"), "jax": ("graph",), "torch": ("eager",)}[
    keras.backend.backend()
]
MODELS = ("dense", "deep")


def measured(models, modes, *schemes):
    """Return the peaks of models in modes, all of one process."""
    found = subprocess.run(
        [sys.executable, SCRIPT, ",".join(models), ",".join(modes), *schemes],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | COUNTING_ALLOCATOR | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pairs = list(itertools.product(models, modes))
    lines = found.stdout.splitlines()[-len(pairs) :]
    return dict(zip(pairs, map(json.loads, lines), strict=True))


@pytest.fixture(scope="module")
def peaks():
    return measured(MODELS, MODES, "float", "int8", "int4", "int8-dynamic")


@pytest.mark.parametrize("model", MODELS)
def test_neither_one_large_layer_nor_many_are_float_at_once(model, peaks):
    for mode in MODES:
        found = peaks[model, mode]
        # Codes are a quarter, and a part of the weights is float for a moment.
        assert found["int8"] < 0.6 * found["float"], found
        assert found["int8-dynamic"] < 0.6 * found["float"], found
        assert found["int4"] < 0.4 * found["float"], found


def test_a_step_of_training_with_lora_keeps_the_floats_of_no_layer():
    (found,) = measured(["deep"], ["step"], "float", "int8", "int4").values()
    # 16 kernels: float with their sums with LoRA, or their codes and a few floats.
    assert found["int8"] < 0.3 * found["float"], found
    assert found["int4"] < 0.25 * found["float"], found
