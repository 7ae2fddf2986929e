"""Inputs and outputs of an exported model as flat lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.converting import Argument
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import named_leaves, outputs_on, sample_inputs
from kerasmem.files.data.check import check_numbers
from kerasmem.files.load import first_reason
from kerasmem.graph.clone import clone
from kerasmem.graph.input_shapes import with_lengths
from kerasmem.types import Dataset, Model

_OPEN_LENGTH = 32


def arguments_of(
    model: Model,
    batch_size: int | None,
    samples: Sequence[np.ndarray] | None = None,
    input_shape: Any | None = None,
) -> list[Argument]:
    """Return the inputs of the exported file.

    Args:
        model: Built `keras.Model`.
        batch_size: Length of the batch axis, or None for an open axis.
        samples: One array per input. Only needed for subclassed models, which have no
            named inputs.
        input_shape: Shape without the batch axis that fixes open lengths, one per input
            (by name or in order). None keeps open lengths.

    Raises:
        ConfigError: If the model has no named inputs and no samples are passed, or if
            the shapes do not fit the inputs.
    """
    tensors = getattr(model, "inputs", None)
    if tensors:
        own = {t.name: tuple(t.shape[1:]) for t in tensors}
        shapes = with_lengths(own, input_shape)
        return [
            Argument(t.name, (batch_size, *(shapes[t.name] or ())), str(t.dtype))
            for t in tensors
        ]
    if samples is None:
        raise ConfigError(
            f"The inputs of the model {model.name!r} are not known. Expected: samples= "
            "with a few inputs. Received: samples=None."
        )
    return [
        Argument(f"input_{i}", (batch_size, *array.shape[1:]), str(array.dtype))
        for i, array in enumerate(samples)
    ]


def with_named_inputs(model: Model, samples: Dataset) -> Any:
    """Return the model, or a functional wrapper with named inputs around a copy.

    A subclassed model with dict inputs gets its input names from the samples.

    Raises:
        DataError: If the model cannot be called on the samples.
        ModelError: If Keras cannot call the model on symbolic inputs.
    """
    if samples is None or getattr(model, "inputs", None):
        return model
    x = sample_inputs(samples, 1)
    outputs_on(model, x)
    if not isinstance(x, dict):
        return model
    tensors = [
        keras.Input(array.shape[1:], dtype=str(array.dtype), name=name)
        for name, array in named_leaves(x).items()
    ]
    inputs = keras.tree.pack_sequence_as(x, tensors)
    try:
        return keras.Model(inputs, clone(model)(inputs), name=model.name)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"The output shapes of the model {model.name!r} cannot be inferred: "
            f"{first_reason(error)}. Expected: a model that Keras can call on a "
            "keras.Input. Next: add a compute_output_spec() method."
        ) from error


def random_samples(arguments: list[Argument], count: int) -> list[np.ndarray]:
    """Return `count` random samples per input.

    Floats are normal. Integers are 0 or 1, because these are valid indices in any
    table.
    """
    random = np.random.default_rng(0)
    samples = []
    for argument in arguments:
        check_numbers(argument)
        shape = [_OPEN_LENGTH if n is None else n for n in argument.shape[1:]]
        if "float" in argument.dtype:
            values = random.normal(size=(count, *shape))
        else:
            values = random.integers(0, 2, (count, *shape))
        samples.append(values.astype(argument.dtype))
    return samples


def call_flat(model: Model, tensors: Sequence[Any]) -> list[Any]:
    """Call the model in inference mode with lists of inputs and outputs."""
    return keras.tree.flatten(model(in_structure(model, tensors), training=False))


def outputs_in_keras(
    model: Model, arrays: Sequence[np.ndarray], batch_size: int | None = None
) -> list[np.ndarray]:
    """Return the outputs of a model on samples.

    The batch size defaults to the model's fixed batch size, or 32.
    """
    tensors = getattr(model, "inputs", None)
    own = tensors[0].shape[0] if tensors else None
    size = batch_size or own or min(32, len(arrays[0]))

    def call(batch: dict[int, np.ndarray]) -> list[np.ndarray]:
        values = [keras.ops.convert_to_tensor(batch[n]) for n in range(len(arrays))]
        return list(map(keras.ops.convert_to_numpy, call_flat(model, values)))

    with current().inference():
        return in_batches(call, range(len(arrays)), arrays, size)


def in_batches(
    call: Callable[[dict[Any, np.ndarray]], Sequence[np.ndarray]],
    names: Iterable[Any],
    arrays: Sequence[np.ndarray],
    size: int,
) -> list[np.ndarray]:
    """Call a function on batches of a fixed size and concatenate the outputs.

    The last batch is padded with its last sample.
    """
    names = list(names)
    parts = [
        call(dict(zip(names, (_rows(a, start, size) for a in arrays), strict=True)))
        for start in range(0, len(arrays[0]), size)
    ]
    outputs_by_name = (np.concatenate(outputs) for outputs in zip(*parts, strict=True))
    return [output[: len(arrays[0])] for output in outputs_by_name]


def _rows(array: np.ndarray, start: int, size: int) -> np.ndarray:
    return array[np.minimum(np.arange(start, start + size), len(array) - 1)]


def in_structure(model: Model, tensors: Sequence[Any]) -> Any:
    """Pack a list of inputs into the input structure of the model."""
    if isinstance(model, keras.Sequential) or not getattr(model, "inputs", None):
        return tensors[0] if len(tensors) == 1 else list(tensors)
    return keras.tree.pack_sequence_as(model.input, list(tensors))
