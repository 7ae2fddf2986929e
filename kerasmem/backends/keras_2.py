"""Keras 2, which is never imported here: it runs in a process of its own."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kerasmem.errors import ModelError

_CHILD = Path(__file__).with_name("keras_2_child.py")


def answers_of_keras_2(
    path: Path, inputs: Sequence[np.ndarray], *, with_tfmot: bool
) -> list[np.ndarray]:
    """Return the outputs of a model that tf_keras wrote, as tf_keras computes them.

    Takes some ten seconds, for a process that starts TensorFlow, on the CPU.

    Args:
        path: the `.h5` or `.keras` file.
        inputs: an array per input.
        with_tfmot: whether wrappers of tfmot are in it.

    Raises:
        ModelError: if tf_keras is not installed, or cannot load or call the model.
    """
    if importlib.util.find_spec("tf_keras") is None:
        raise ModelError("tf_keras is not installed (pip install tf_keras)")
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        x, y = Path(folder, "inputs.npz"), Path(folder, "answers.npz")
        np.savez(x, *inputs)
        kind = "tfmot" if with_tfmot else "plain"
        # Without -P this folder would be where its imports are looked for first.
        command = [sys.executable, "-P", str(_CHILD), str(path), str(x), str(y), kind]
        ended = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, check=False
        )
        if not y.exists():
            lines = [line for line in ended.stderr.splitlines() if line.strip()]
            raise ModelError(f"tf_keras fails: {lines[-1] if lines else 'no reason'}")
        with np.load(y) as arrays:
            return [arrays[name] for name in arrays.files]


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    more = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**os.environ, **more, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": paths}
