"""Stages of a `tf.data.Dataset`. TensorFlow is imported on the first call.

Not part of an adapter, because such datasets work with any backend.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kerasmem.types import Dataset

AUTOTUNE = -1


@dataclass(frozen=True)
class DatasetStage:
    """One transformation of a dataset. Unknown or infinite values are None.

    `kind` is the class name without "Dataset", such as `"Shuffle"`. `size` is a buffer
    size, a number of parallel calls, a cycle length or `AUTOTUNE`. `file` is the file
    of a cache, `""` for memory.
    """

    kind: str
    element_bytes: int | None
    elements: int | None
    size: int | None
    file: str = ""


def is_dataset(data: Dataset) -> bool:
    """Return whether data is a `tf.data.Dataset`, without importing TensorFlow."""
    names = (f"{c.__module__}.{c.__name__}" for c in type(data).__mro__)
    return any(name.endswith("dataset_ops.DatasetV2") for name in names)


def stages(dataset: Dataset) -> Iterator[DatasetStage]:
    """Yield the transformations of a dataset, sources first."""
    for source in _sources(dataset):
        yield from stages(source)
    sizes = [_number(dataset, name) for name in _SIZES]
    filename = getattr(dataset, "_filename", None)
    yield DatasetStage(
        kind=type(dataset).__name__.strip("_").removesuffix("Dataset"),
        element_bytes=_element_bytes(dataset),
        elements=_elements(dataset),
        size=next((size for size in sizes if size is not None), None),
        file=filename.numpy().decode() if filename is not None else "",
    )


# Private: `options()` does not contain the buffer sizes of a dataset, and there is no
# other public access.
_SIZES = ("_buffer_size", "_cycle_length", "_num_parallel_calls", "_batch_size")


def _sources(dataset: Dataset) -> list[Any]:
    return dataset._inputs()


def _number(dataset: Dataset, name: str) -> int | None:
    value = getattr(dataset, name, None)
    return None if value is None else int(value)


def _elements(dataset: Dataset) -> int | None:
    count = int(dataset.cardinality())
    return count if count >= 0 else None  # -1 is infinite, -2 unknown


def _element_bytes(dataset: Dataset) -> int | None:
    import tensorflow as tf

    batch = _number(dataset, "_batch_size")
    if batch is not None:
        (source,) = _sources(dataset)
        size = _element_bytes(source)
        return None if size is None else batch * size
    specs = tf.nest.flatten(dataset.element_spec)
    if all(map(_has_size, specs)):
        return sum(math.prod(s.shape) * s.dtype.size for s in specs)
    sources = _sources(dataset)
    if len(sources) == 1 and type(dataset).__name__.strip("_") in _KEEP_ELEMENTS:
        return _element_bytes(sources[0])
    return None


def _has_size(spec: Any) -> bool:
    import tensorflow as tf

    # The size of strings and handles is not fixed.
    is_tensor = isinstance(spec, tf.TensorSpec) and spec.dtype.size > 0
    return is_tensor and spec.shape.is_fully_defined()


_KEEP_ELEMENTS = frozenset(
    f"{kind}Dataset" for kind in ("Prefetch", "Shuffle", "Cache", "Repeat", "Take")
)


def processors() -> int:
    """Return the number of processors for parallel calls of TensorFlow."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
