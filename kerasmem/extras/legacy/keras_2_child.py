"""Calls a Keras 2 model in a separate process.

tfmot changes the Keras of TensorFlow for the whole process, so this script does not
import kerasmem. Usage: `python keras_2_child.py MODEL INPUTS.npz ANSWERS.npz KIND`.
"""

import importlib
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np


def main(model: str, inputs: str, answers: str, kind: str) -> None:
    """Load a model, call it, and write its outputs.

    Args:
        model: Path of the model file.
        inputs: Path of an `.npz` file with one array per input, in order.
        answers: Path of the `.npz` file to write, with one array per output.
        kind: `"tfmot"` for a model with tfmot wrappers, otherwise `"plain"`.
    """
    keras: Any = importlib.import_module("tf_keras")
    with np.load(inputs) as arrays:
        x = [arrays[name] for name in arrays.files]
    with ExitStack() as scopes:
        if kind == "tfmot":
            tfmot: Any = importlib.import_module("tensorflow_model_optimization")
            scopes.enter_context(tfmot.sparsity.keras.prune_scope())
            scopes.enter_context(tfmot.clustering.keras.cluster_scope())
        loaded_model = keras.models.load_model(model, compile=False)
        outputs = loaded_model(x if len(x) > 1 else x[0], training=False)
    flat = importlib.import_module("tensorflow").nest.flatten(outputs)
    np.savez(answers, *map(np.asarray, flat))


if __name__ == "__main__":
    main(*sys.argv[1:])
