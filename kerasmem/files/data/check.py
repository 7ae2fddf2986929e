"""Checks samples against a model."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.errors import ConfigError, DataError, KerasMemWarning
from kerasmem.files.data.forms import (
    first_samples,
    holds_texts,
    is_array_data,
    length_of,
    named_leaves,
    sample_inputs,
)
from kerasmem.files.load import first_reason
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.outputs import (
    compares_entries,
    of_each,
    output_of,
    takes_loss,
)
from kerasmem.types import Dataset, Model, Tensor, Tensors

_NUMERIC = re.compile(r"int|float|bool|complex")  # in the dtype names of any framework


def check_data(model: Model, data: Dataset) -> None:
    """Raises `DataError` unless samples are numeric, equal in number and fit the model.

    Shapes are compared with the inputs of the model, and label names with its outputs.
    Only the first batch of batched data is checked. Subclassed models do not declare
    inputs and outputs, so only the numbers of samples are checked.
    """
    parts = first_samples(data)
    if getattr(model, "preprocessor", None) is not None and holds_texts(parts["x"]):
        raise DataError(
            f"Expected token ids for the task {model.name!r}. Received: text. Next: "
            "data=task.preprocessor(texts, labels), or for a language model a list of "
            "texts without labels."
        )
    arrays = {
        f"{part}_{name}" if name else part: array
        for part, structure in parts.items()
        if structure is not None
        for name, array in named_leaves(structure).items()
        if array is not None
    }
    check_lengths(arrays)
    count = length_of(next(iter(arrays.values())))
    if count % (size := fixed_batch(model, of_states=True) or 1):
        raise DataError(
            f"The model {model.name!r} has stateful layers built for batches of {size} "
            f"samples. Expected: a multiple of {size} samples. Received: {count}."
        )
    if getattr(model, "inputs", None):
        for tensor, array in _by_input(model.inputs, input_names(model), parts["x"]):
            if array is not None:  # an optional input
                _check_input(tensor, array)
        if isinstance(parts.get("y"), dict):
            _check_label_names(model, list(named_leaves(parts["y"])))


def outputs_on(model: Model, x: Dataset) -> Any:
    """Returns the output of a model in inference mode.

    Raises `DataError` with the reason and the input names if the call fails.
    """
    try:
        with current().inference():
            return model(x, training=False)
    except Exception as error:
        input_names = (
            f" named {', '.join(named_leaves(x))}" if isinstance(x, dict) else ""
        )
        raise DataError(
            f"The model {model.name!r} cannot be called with the inputs of the data: "
            f"{first_reason(error)}. Received: x{input_names}."
        ) from error


def check_labels(model: Model, data: Dataset, outputs: Tensors = None) -> None:
    """Raises `DataError` for labels that the loss would misinterpret.

    Checks class labels (see `check_classes`) and label shapes. Losses of Keras that
    compare labels and output entry by entry would broadcast each label to all outputs.
    The default of `outputs` is the output in the graph of the model.
    """
    outputs = output_of(model) if outputs is None else outputs
    labels = first_samples(data).get("y")
    if outputs is not None and labels is not None and takes_loss(model):
        tensors = keras.tree.flatten(outputs)
        names = getattr(model, "output_names", None)
        losses = of_each(names, model.loss, outputs)
        labels_by_output = of_each(names, labels, outputs)
        for output, loss, array in zip(tensors, losses, labels_by_output, strict=True):
            if compares_entries(loss):
                _check_label_shape(output, loss, array)
    check_classes(model, data)


def _check_label_shape(output: Tensor, loss: Any, labels: Tensor) -> None:
    shape = tuple(getattr(labels, "shape", None) or ())
    output_shape = (None, *tuple(output.shape)[1:])
    if shape and None not in shape[1:] and not _fits(output_shape, shape):
        loss_name = getattr(loss, "name", None) or getattr(loss, "__name__", loss)
        raise DataError(
            f"The labels do not fit the model and its loss: {loss_name} compares them "
            "with the output entry by entry. Expected: y of the output's shape "
            f"{output_shape}. Received: y of shape {shape}. Next: labels of that "
            "shape; for numbers of classes, loss='sparse_categorical_crossentropy' "
            "(--loss on the command line)."
        )


def check_classes(model: Model, data: Dataset) -> None:
    """Raises `DataError` for a class label without a corresponding output.

    JAX computes a loss of 0 for such a label; TensorFlow and torch fail during
    training. Checks arrays with one label per sample, for one output and a sparse
    categorical loss. Skips data with sample weights, which can be 0 for invalid labels.
    """
    parts = first_samples(data) if is_array_data(data) else {}
    labels, outputs = parts.get("y"), getattr(model, "outputs", None) or ()
    loss = model.loss if model.compiled else None
    if labels is None or not hasattr(labels, "shape") or not _takes_classes(loss):
        return
    if len(outputs) != 1 or len(outputs[0].shape) != 2:
        return
    _check_not_one_hot(tuple(labels.shape), outputs[0].shape[-1])
    if parts.get("sample_weight") is not None:
        return
    labels, classes = keras.ops.convert_to_numpy(labels), outputs[0].shape[-1]
    if classes is None or not labels.size or labels.dtype.kind not in "iuf":
        return
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"The model has {classes} classes. Expected: labels from 0 to "
            f"{classes - 1}. Received: y from {labels.min()} to {labels.max()}."
        )


def _check_not_one_hot(shape: tuple[int, ...], classes: int | None) -> None:
    if len(shape) == 2 and shape[1] > 1 and shape[1] == classes:
        raise DataError(
            "A sparse loss needs one class index per sample. Received: y of shape "
            f"{shape}, probably one-hot. Next: y.argmax(axis=-1), or "
            "loss='categorical_crossentropy' (--loss on the command line)."
        )


def _takes_classes(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    name = (name or type(loss).__name__).lower().replace("_", "")
    ignores = getattr(loss, "ignore_class", None) is not None
    return name == "sparsecategoricalcrossentropy" and not ignores


def warn_if_not_finite(data: Dataset) -> None:
    """Warns if arrays of samples contain NaN or infinity. Skips batched data."""
    parts = first_samples(data) if is_array_data(data) else {}
    for part, structure in parts.items():
        for name, array in named_leaves(structure).items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                continue
            wrong = array.size - np.count_nonzero(np.isfinite(array))
            if wrong:
                warnings.warn(
                    f"The data contains NaN or infinity: {wrong:,} of {array.size:,} "
                    f"entries of {f'{part}_{name}' if name else part}.",
                    KerasMemWarning,
                    stacklevel=3,
                )


def input_names(model: Model) -> list[str]:
    """Returns the keys of dict data for all inputs, in order.

    These are the keys of the input dict of a model, or the names of its inputs.
    """
    structure = getattr(model, "input", None)  # a Sequential may have none
    if isinstance(structure, dict):
        return list(named_leaves(structure))
    return [tensor.name for tensor in model.inputs]


def check_lengths(arrays: dict[str, Any]) -> None:
    """Raises `DataError` unless all arrays have the same, nonzero number of samples."""
    for name, array in arrays.items():
        _check_rows(name, array)
    lengths = {name: length_of(array) for name, array in arrays.items()}
    counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
    if len(set(lengths.values())) > 1:
        raise DataError(
            "All arrays of samples must have the same length. Received: "
            f"{counts} samples."
        )
    if 0 in lengths.values():
        raise DataError(f"The data is empty. Received: {counts} samples.")


def _check_rows(name: str, array: Tensor) -> None:
    # A tuple, because TensorFlow's scalar shape is truthy.
    if tuple(np.shape(array)):
        return
    if hasattr(array, "shape"):
        raise DataError(
            f"An array of samples has one row per sample. Received: {name} = "
            f"{array!r}, which has no rows. Next: batch the dataset, or use an array."
        )
    part = re.sub(r"([._]\d+)+$", "", name)
    raise DataError(
        f"Expected samples in arrays. Received: {part} as a list of values, the first "
        f"{array!r}. Next: convert it with np.asarray({part})."
    )


def _check_label_names(model: Model, label_names: list[str]) -> None:
    outputs = getattr(model, "output", None)  # a Sequential has no output names
    if isinstance(outputs, dict):
        output_names = list(named_leaves(outputs))
    elif isinstance(outputs, (list, tuple)):
        output_names = list(model.output_names)
    else:
        raise DataError(
            "The model has one output. Expected: labels in one array. Received: labels "
            f"named {', '.join(label_names)}."
        )
    if (
        not _outputs_with_loss(model, output_names)
        <= set(label_names)
        <= set(output_names)
    ):
        raise DataError(
            "Labels are named after the outputs. Received: the model has the outputs "
            f"{', '.join(output_names)}; the data has the labels "
            f"{', '.join(label_names)}."
        )


def _outputs_with_loss(model: Model, names: list[str]) -> set[str]:
    loss = model.loss if model.compiled else None
    if isinstance(loss, dict):
        return {name for name in names if loss.get(name) is not None}
    # Keras defines the order of outputs for a list of losses.
    return set() if loss is None or isinstance(loss, (list, tuple)) else set(names)


def _by_input(
    inputs: Sequence[Any], wanted: list[str], x: Dataset
) -> list[tuple[Any, Any]]:
    """Returns pairs of input tensor and array, matched as in Keras."""
    arrays = named_leaves(x)
    if isinstance(x, dict):
        missing = [name for name in wanted if name not in arrays]
        if missing:
            raise DataError(
                f"The model's inputs are named {wanted}. Received: data named "
                f"{list(arrays)}; {missing} missing. Next: name the data after the "
                "inputs."
            )
        return [(t, arrays[name]) for t, name in zip(inputs, wanted, strict=True)]
    if len(arrays) != len(inputs):
        raise DataError(
            f"The model has {len(inputs)} input{'s' * (len(inputs) > 1)}, {wanted}. "
            f"Received: {len(arrays)} arrays of x. Next: a list contains the inputs; "
            "for samples with labels, pass a tuple (x, y)."
        )
    return list(zip(inputs, arrays.values(), strict=True))


def _check_input(tensor: Tensor, array: Tensor) -> None:
    shape = tuple(np.shape(array))
    input_shape = (None, *tensor.shape[1:])  # a recorded batch size limits no array
    if not _fits(input_shape, shape):
        raise DataError(
            f"The data does not fit input {tensor.name!r} of the model, which takes "
            f"shape {input_shape}. Received: x of shape {shape}."
        )
    dtype = str(getattr(array, "dtype", np.asarray(array).dtype))
    if tensor.dtype != "string" and not _NUMERIC.search(dtype):
        raise DataError(
            f"Input {tensor.name!r} of the model takes numbers ({tensor.dtype}). "
            f"Received: x of dtype {dtype}."
        )


def _fits(expected: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    if len(shape) == len(expected) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) == len(expected) - 1 and expected[-1] == 1:
        shape = (*shape, 1)
    return len(shape) == len(expected) and all(
        want in {None, size} for want, size in zip(expected, shape, strict=True)
    )


def flat_samples(model: Model, data: Dataset, count: int) -> list[np.ndarray]:
    """Returns the first `count` samples as one array per input of the model, in order.

    Raises `ConfigError` if the model takes a dict but does not name its inputs, or
    takes strings.
    """
    check_data(model, data)
    x = sample_inputs(data, count)
    tensors = getattr(model, "inputs", None)
    if not tensors:
        if isinstance(x, dict):
            raise ConfigError(
                f"The model {model.name!r} does not name its inputs. Received: a dict "
                f"of {', '.join(map(str, x))}. Next: wrap the model in a keras.Model "
                "with named Inputs."
            )
        return [np.asarray(array) for array in keras.tree.flatten(x)]
    if isinstance(x, dict):
        by_name = named_leaves(x)
        arrays = [by_name[name] for name in input_names(model)]
    else:
        arrays = keras.tree.flatten(x)
    for tensor in tensors:
        check_numbers(tensor)
    return [_fitted(a, t) for a, t in zip(arrays, tensors, strict=True)]


def check_numbers(tensor: Tensor) -> None:
    """Raises `ConfigError` for a string input."""
    if tensor.dtype == "string":
        raise ConfigError(
            f"Expected numeric inputs. Received: input {tensor.name!r} of dtype "
            "string. Next: remove its layer from the model and pass the layer's output."
        )


def _fitted(array: Tensor, tensor: Tensor) -> np.ndarray:
    array = np.asarray(array, dtype=tensor.dtype)
    if array.ndim == len(tensor.shape) - 1:
        return array[..., None]
    return array[..., 0] if array.ndim == len(tensor.shape) + 1 else array
