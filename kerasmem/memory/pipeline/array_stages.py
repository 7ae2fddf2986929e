"""The host bytes of arrays, and what `fit` makes of them."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from kerasmem.errors import DataError
from kerasmem.files.data.forms import first_samples, named_leaves
from kerasmem.files.data.mapped import mapping_of
from kerasmem.records import PipelineStage
from kerasmem.units import format_bytes


def array_stages(data: Any) -> Iterator[PipelineStage]:
    """Yield the arrays of `data`, and the copies that `fit` makes of them."""
    cast = copied = 0
    for role, part in first_samples(data).items():
        for name, leaf in named_leaves(part).items():
            array = _as_array(leaf)
            yield _array_stage(f"{role} {name}".strip(), array)
            size = _in_floatx(array)
            copied += size
            cast += size if size != array.nbytes else 0
    if cast:
        yield PipelineStage(f"copy in {keras.config.floatx()}", cast)
    if keras.backend.backend() == "tensorflow":
        yield PipelineStage(
            "copies that TensorFlow makes",
            2 * copied,
            "One while fit begins, one until it ends; km.memory.stream makes none.",
        )


def held_stages(attributes: Mapping[str, Any]) -> Iterator[PipelineStage]:
    """Yield the arrays among attributes, also those in lists, tuples and dicts."""
    seen: set[int] = set()
    for attribute, value in attributes.items():
        name = attribute.strip("_")
        leaves = [leaf for leaf in keras.tree.flatten(value) if is_array(leaf)]
        arrays = [leaf for leaf in leaves if id(leaf) not in seen]
        seen |= set(map(id, arrays))
        if len(arrays) == 1:
            yield _array_stage(name, arrays[0])
        elif arrays:
            yield PipelineStage(f"{name}, {len(arrays):,} arrays", leaf_bytes(arrays))


def leaf_bytes(parts: Any) -> int:
    """Return the bytes of all arrays in a structure."""
    leaves = [leaf for leaf in keras.tree.flatten(parts) if leaf is not None]
    return sum(x.nbytes if is_array(x) else np.asarray(x).nbytes for x in leaves)


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor that tells its bytes."""
    return hasattr(value, "nbytes") and hasattr(value, "dtype")


def _as_array(leaf: Any) -> Any:
    array = leaf if is_array(leaf) else np.asarray(leaf)
    if not array.shape:
        raise DataError(
            "Expected arrays with one entry per sample. Received: "
            f"{type(leaf).__name__} {leaf!r}. Next: numpy.asarray makes an array of a "
            "list of numbers."
        )
    return array


def _array_stage(label: str, array: Any) -> PipelineStage:
    if mapping_of(array) is not None:
        advice = (
            "Its pages count as resident once looked at; km.memory.stream frees them."
        )
        return PipelineStage(f"{label}, on disk", 0, advice)
    advice, saved = None, array.nbytes - _in_floatx(array)
    if saved > 0:
        advice = (
            f"Keras trains in {keras.config.floatx()}: casting {array.dtype} before "
            f"saves {format_bytes(saved)}."
        )
    return PipelineStage(label, array.nbytes, advice)


def _in_floatx(array: Any) -> int:
    # Keras casts every float to the type it trains in.
    is_float = str(array.dtype).startswith("float")
    size = (
        np.dtype(keras.config.floatx()).itemsize if is_float else array.dtype.itemsize
    )
    return int(np.prod(array.shape)) * size
