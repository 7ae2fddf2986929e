"""Whether a converted model answers as the one in the file does under tf_keras."""

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from kerasmem.errors import ChildDiedError, ModelError, ModelFileError
from kerasmem.extras.legacy import keras_2_child
from kerasmem.extras.legacy.file import ConvertedLayer
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.processes import run_script
from kerasmem.stats.difference import difference
from kerasmem.types import Model

_SAMPLES, _OPEN_LENGTH = 4, 8
_KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}
"""Environment in which TensorFlow's own Keras is tf_keras."""

_TOLERANCE, _TOLERANCE_OF_HALVES = 1e-5, 2e-2


def compare(path: Path, converted: ConvertedLayer) -> float:
    """Return how far a model is from the one it was made of, on random inputs.

    It is the largest difference of an entry, in units of the largest answer if that is
    more than 1.

    Args:
        path: the file of Keras 2.
        converted: the model that was made of it.

    Raises:
        ModelError: if they cannot be compared; the message says why.
        ModelFileError: if they are further apart than the tolerance.
    """
    if path.is_dir():
        raise ModelError("the functions of TensorFlow in a SavedModel are not run")
    if converted.is_rounded:
        raise ModelError("the model in the file rounds, and the new one does not")
    model = converted.layer
    inputs = _inputs(model)
    keras_2_outputs = answers_of_keras_2(path, inputs, with_tfmot=converted.is_wrapped)
    answers = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    outputs = [to_numpy(answer) for answer in keras.tree.flatten(answers)]
    if [a.shape for a in outputs] != [b.shape for b in keras_2_outputs]:
        raise ModelFileError(
            f"{str(path)!r}: the converted model gives outputs of the shapes "
            f"{[a.shape for a in outputs]}. Expected: "
            f"{[b.shape for b in keras_2_outputs]}."
        )
    apart = difference(outputs, keras_2_outputs, least=1.0)
    halves = any("16" in layer.compute_dtype for layer in sublayers(model))
    tolerance = _TOLERANCE_OF_HALVES if halves else _TOLERANCE
    if not apart <= tolerance:
        raise ModelFileError(
            f"{str(path)!r}: the converted model answers otherwise than the one in the "
            f"file does under tf_keras. Expected: a difference of at most "
            f"{tolerance}. Received: {apart:.3g}."
        )
    return apart


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
        names = (str(path), str(x), str(y), "tfmot" if with_tfmot else "plain")
        try:
            script = Path(keras_2_child.__file__)
            doing = f"Calling {path.name!r} in tf_keras"
            run_script(script, *names, doing=doing, environment=_KERAS_2)
        except ChildDiedError as error:
            raise ModelError(f"tf_keras fails: {error.reason}") from error
        with np.load(y) as arrays:
            return [arrays[name] for name in arrays.files]


def _inputs(model: Model) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    layers = sublayers(model)
    takes_indices = any(isinstance(layer, keras.layers.Embedding) for layer in layers)
    arrays = []
    for tensor in model.inputs:
        first, *rest = tensor.shape
        shape = [first or _SAMPLES, *(n or _OPEN_LENGTH for n in rest)]
        if takes_indices or "float" not in tensor.dtype:
            values = random.integers(0, 2, shape)  # which any table has
        else:
            values = random.normal(size=shape)
        arrays.append(values.astype(tensor.dtype))
    return arrays
