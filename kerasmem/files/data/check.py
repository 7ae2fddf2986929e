"""Do these samples fit this model? One clear line if they do not."""

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
    """Raise unless the samples are numbers of equal count that fit the model.

    Shapes are compared with the model's inputs, the names of labels with its outputs.
    Batched data is judged by its first batch. A subclassed model names no inputs and no
    outputs, so only the counts are checked.

    Args:
        model: a `keras.Model`.
        data: samples in any of the forms that `kerasmem.files.data` lists.

    Raises:
        DataError: with the name of the input, the model's shape and the data's shape.
    """
    parts = first_samples(data)
    if getattr(model, "preprocessor", None) is not None and holds_texts(parts["x"]):
        raise DataError(
            f"Expected token ids for the task {model.name!r}. Received: texts. Next: "
            "data=task.preprocessor(texts, labels), or a .txt file on the command line."
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
    """Return what a model gives for inputs.

    Raises:
        DataError: if it cannot be called on them, with the reason and their names.
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
    """Raise for labels that the loss of a model would take for something else.

    These are labels of no class, see `check_classes`, and labels whose shape is not
    that of the output, where a loss of Keras's own compares the two entry by entry:
    broadcast, each label would stand for every output.

    Args:
        model: a `keras.Model`.
        data: samples in any of the forms that `kerasmem.files.data` lists.
        outputs: what the model returns; None for what its graph says, if it has one.

    Raises:
        DataError: with the shapes of labels and output, or the range of the labels.
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
    """Raise for a class label that the model has no output for.

    JAX computes a loss of 0 for it, and TensorFlow and torch stop in mid-work. Looked
    at are arrays with one label per sample, of a model with one output and a sparse
    categorical loss; not with weights, which may be 0 for labels that stand for none.

    Args:
        model: a `keras.Model`.
        data: samples in any of the forms that `kerasmem.files.data` lists.

    Raises:
        DataError: with the least and the greatest label, or with the shape of labels
            that are one-hot.
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
            f"The model tells {classes} classes apart, so the labels go from 0 to "
            f"{classes - 1}. Received: y from {labels.min()} to {labels.max()}."
        )


def _check_not_one_hot(shape: tuple[int, ...], classes: int | None) -> None:
    if len(shape) == 2 and shape[1] > 1 and shape[1] == classes:
        raise DataError(
            "A sparse loss takes the number of a class for each sample. Received: y of "
            f"shape {shape}, one-hot it seems. Next: y.argmax(axis=-1), or "
            "loss='categorical_crossentropy' (--loss on the command line)."
        )


def _takes_classes(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", "")
    name = (name or type(loss).__name__).lower().replace("_", "")
    ignores = getattr(loss, "ignore_class", None) is not None
    return name == "sparsecategoricalcrossentropy" and not ignores


def warn_if_not_finite(data: Dataset) -> None:
    """Warn, in one line, if arrays of samples hold NaN or infinity.

    Args:
        data: samples in any of the forms that `kerasmem.files.data` lists; batches are
            not looked at.
    """
    parts = first_samples(data) if is_array_data(data) else {}
    for part, structure in parts.items():
        for name, array in named_leaves(structure).items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                continue
            wrong = array.size - np.count_nonzero(np.isfinite(array))
            if wrong:
                warnings.warn(
                    f"The data holds NaN or infinity: {wrong:,} of {array.size:,} "
                    f"entries of {f'{part}_{name}' if name else part}.",
                    KerasMemWarning,
                    stacklevel=3,
                )


def input_names(model: Model) -> list[str]:
    """Return what data in a dict is named after, for every input in order.

    These are the keys of a model whose inputs are in a dict, else the names of inputs.

    Args:
        model: a `keras.Model` with inputs.
    """
    structure = getattr(model, "input", None)  # a Sequential may have none
    if isinstance(structure, dict):
        return list(named_leaves(structure))
    return [tensor.name for tensor in model.inputs]


def check_lengths(arrays: dict[str, Any]) -> None:
    """Raise unless all arrays hold the same number of samples, at least one.

    Raises:
        DataError: with every array's length.
    """
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


def _check_rows(name: str, array: Any) -> None:
    # A tuple, because TensorFlow's shape of a scalar is true.
    if tuple(np.shape(array)):
        return
    if hasattr(array, "shape"):
        raise DataError(
            f"An array of samples has one row per sample. Received: {name} = "
            f"{array!r}, which has no rows. Next: batch the dataset, and store an "
            "array."
        )
    part = re.sub(r"([._]\d+)+$", "", name)
    raise DataError(
        f"Samples come in arrays. Received: {part} as a list of values, the first "
        f"{array!r}. Next: make it a NumPy array, np.asarray({part})."
    )


def _check_label_names(model: Model, label_names: list[str]) -> None:
    outputs = getattr(model, "output", None)  # a Sequential has one and no such name
    if isinstance(outputs, dict):
        output_names = list(named_leaves(outputs))
    elif isinstance(outputs, (list, tuple)):
        output_names = list(model.output_names)
    else:
        raise DataError(
            "The model has one output, so its labels are one array. Received: labels "
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
    # Losses in a list belong to outputs in an order that is for Keras to know.
    return set() if loss is None or isinstance(loss, (list, tuple)) else set(names)


def _by_input(
    inputs: Sequence[Any], wanted: list[str], x: Dataset
) -> list[tuple[Any, Any]]:
    """Return `(input tensor, array)` pairs, matched as Keras does.

    Args:
        inputs: the input tensors of a model.
        wanted: their names in data, in the same order.
        x: the arrays.
    """
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
            f"The model has {len(inputs)} inputs, {wanted}. Received: "
            f"{len(arrays)} arrays of x."
        )
    return list(zip(inputs, arrays.values(), strict=True))


def _check_input(tensor: Tensor, array: Any) -> None:
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
    """Return an array per input of `model`, in its order, of the first samples.

    Args:
        model: a `keras.Model`.
        data: samples in any of the forms that `kerasmem.files.data` lists.
        count: most samples to take.

    Raises:
        ConfigError: if the model takes its inputs by names that it does not tell, or
            takes strings.
        DataError: if the data does not fit the model.
    """
    check_data(model, data)
    x = sample_inputs(data, count)
    tensors = getattr(model, "inputs", None)
    if not tensors:
        if isinstance(x, dict):
            raise ConfigError(
                f"The model {model.name!r} does not name its inputs. Received: a dict "
                f"of {', '.join(map(str, x))}. Next: put it into a keras.Model with "
                "named Inputs."
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
    """Raise unless an input takes numbers.

    Args:
        tensor: has the name and the dtype of the input.

    Raises:
        ConfigError: if it takes strings.
    """
    if tensor.dtype == "string":
        raise ConfigError(
            f"Expected numbers, no texts. Received: input {tensor.name!r} of dtype "
            "string. Next: take its layer out of the model, and pass the output."
        )


def _fitted(array: Any, tensor: Tensor) -> np.ndarray:
    array = np.asarray(array, dtype=tensor.dtype)
    if array.ndim == len(tensor.shape) - 1:
        return array[..., None]
    return array[..., 0] if array.ndim == len(tensor.shape) + 1 else array
