"""The parts that data is made of, and the host bytes that each may hold."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from kerasmem.backends import tf_data
from kerasmem.files.data import is_array_data
from kerasmem.files.data.forms import first_samples, named_leaves
from kerasmem.files.data.mapped import mapping_of
from kerasmem.memory.pipeline.tf_stages import dataset_stages
from kerasmem.records import PipelineStage
from kerasmem.units import format_bytes


def stages(data: Any) -> Iterator[PipelineStage]:
    """Yield the parts of `data`, from the source on."""
    if is_array_data(data):
        yield from _array_stages(data)
    elif tf_data.is_dataset(data):
        yield from dataset_stages(data)
    elif isinstance(data, keras.utils.PyDataset):
        yield from _py_dataset_stages(data)
    else:
        yield PipelineStage(
            f"{type(data).__name__} that is iterated over",
            None,
            "What it holds cannot be seen from outside; a keras.utils.PyDataset can "
            "be read twice, and so be measured.",
        )


def _array_stages(data: Any) -> Iterator[PipelineStage]:
    cast = copied = 0
    for role, part in first_samples(data).items():
        for name, array in named_leaves(part).items():
            yield _array_stage(f"{role} {name}".strip(), array)
            size = _in_floatx(array)
            copied += size
            cast += size if size != _bytes(array) else 0
    if cast:
        yield PipelineStage(f"copy in {keras.config.floatx()}", cast)
    if keras.backend.backend() == "tensorflow":
        yield PipelineStage(
            "copies that TensorFlow makes",
            2 * copied,
            "One while fit begins, one until it ends; km.memory.stream makes none.",
        )


def _array_stage(label: str, array: Any) -> PipelineStage:
    if mapping_of(array) is not None:
        advice = (
            "Its pages count as resident once looked at; km.memory.stream frees them."
        )
        return PipelineStage(f"{label}, on disk", 0, advice)
    advice, saved = None, _bytes(array) - _in_floatx(array)
    if saved > 0:
        advice = (
            f"Keras trains in {keras.config.floatx()}: casting {array.dtype} before "
            f"saves {format_bytes(saved)}."
        )
    return PipelineStage(label, _bytes(array), advice)


def _py_dataset_stages(data: Any) -> Iterator[PipelineStage]:
    arrays = {
        name: value
        for name, value in vars(data).items()
        if isinstance(value, np.ndarray)
    }
    for name, array in arrays.items():
        yield _array_stage(name.strip("_"), array)
    size = leaf_bytes(first_samples(data))
    queue = data.max_queue_size if data.workers else 1
    yield PipelineStage(
        f"queue of {queue} batches",
        queue * size,
        f"max_queue_size=2 would hold {format_bytes(2 * size)}." if queue > 2 else None,
    )
    if data.workers > 1 and data.use_multiprocessing:
        held = sum(map(_bytes, arrays.values()))
        yield PipelineStage(
            f"{data.workers} worker processes",
            data.workers * (held + size),
            "Every process may end up with its own copy; use_multiprocessing=False "
            "shares one.",
        )


def leaf_bytes(parts: Any) -> int:
    """Return the bytes of all arrays in a structure."""
    leaves = [leaf for leaf in keras.tree.flatten(parts) if leaf is not None]
    return sum(map(_bytes, leaves))


def _bytes(array: Any) -> int:
    return array.nbytes if hasattr(array, "nbytes") else np.asarray(array).nbytes


def _in_floatx(array: Any) -> int:
    # Keras casts every float to the type it trains in.
    is_float = str(array.dtype).startswith("float")
    size = (
        np.dtype(keras.config.floatx()).itemsize if is_float else array.dtype.itemsize
    )
    return int(np.prod(array.shape)) * size
