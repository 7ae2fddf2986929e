"""What a model answers under Keras 2, in a process that does nothing else.

tfmot changes which Keras TensorFlow has for a whole process; this one imports nothing
of kerasmem. Run as `python keras_2_child.py MODEL INPUTS.npz ANSWERS.npz KIND`.
"""

import importlib
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np


def main(model: str, inputs: str, answers: str, kind: str) -> None:
    """Load a model, call it, and write what it answers.

    Args:
        model: path of the file.
        inputs: path of an `.npz` with an array per input, in their order.
        answers: path of the `.npz` to write, with an array per output.
        kind: `"tfmot"` for a model with wrappers of tfmot, `"plain"` for any other.
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
