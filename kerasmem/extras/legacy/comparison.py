"""Compares a converted model with the original model in tf_keras."""

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
"""Environment variable that makes tf_keras TensorFlow's Keras."""

_TOLERANCE, _TOLERANCE_OF_HALVES = 1e-5, 2e-2


def compare(path: Path, converted: ConvertedLayer) -> float:
    """Return how much a converted model differs from the original on random inputs.

    The result is the largest difference of an output entry. It is relative to the
    largest output if that exceeds 1.

    Raises:
        ModelError: If the models cannot be compared.
        ModelFileError: If the difference exceeds the tolerance.
    """
    if path.is_dir():
        raise ModelError("TensorFlow functions in a SavedModel are never run")
    if converted.is_rounded:
        raise ModelError("only the model in the file rounds its activations")
    model = converted.layer
    inputs = _inputs(model)
    keras_2_outputs = answers_of_keras_2(path, inputs, with_tfmot=converted.is_wrapped)
    answers = model(inputs if len(inputs) > 1 else inputs[0], training=False)
    outputs = [to_numpy(answer) for answer in keras.tree.flatten(answers)]
    if [a.shape for a in outputs] != [b.shape for b in keras_2_outputs]:
        raise ModelFileError(
            f"{str(path)!r}: the outputs of the converted model have other shapes. "
            f"Expected: {[b.shape for b in keras_2_outputs]}. "
            f"Received: {[a.shape for a in outputs]}."
        )
    apart = difference(outputs, keras_2_outputs, least=1.0)
    halves = any("16" in layer.compute_dtype for layer in sublayers(model))
    tolerance = _TOLERANCE_OF_HALVES if halves else _TOLERANCE
    if not apart <= tolerance:
        raise ModelFileError(
            f"{str(path)!r}: the outputs of the converted model differ from those "
            f"computed by tf_keras. Expected: a difference of at most "
            f"{tolerance}. Received: {apart:.3g}."
        )
    return apart


def answers_of_keras_2(
    path: Path, inputs: Sequence[np.ndarray], *, with_tfmot: bool
) -> list[np.ndarray]:
    """Return the outputs of a tf_keras model, computed by tf_keras.

    It takes about ten seconds to start a TensorFlow process on the CPU.

    Raises:
        ModelError: If tf_keras is not installed, or cannot load or call the model.
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
            raise ModelError(f"tf_keras failed: {error.reason}") from error
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
            values = random.integers(0, 2, shape)  # valid indices in any table
        else:
            values = random.normal(size=shape)
        arrays.append(values.astype(tensor.dtype))
    return arrays
