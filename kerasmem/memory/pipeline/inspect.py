"""Estimates and measures the host memory of an input pipeline."""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.backends import tf_data
from kerasmem.backends.heap import trim_heap
from kerasmem.backends.tf_data import AUTOTUNE, DatasetStage
from kerasmem.checks import Whole
from kerasmem.errors import DataError
from kerasmem.files.data import fit_arguments, is_array_data, load_data, sample_count
from kerasmem.files.data.forms import first_samples, is_sparse, named_leaves
from kerasmem.files.data.source import mapping_of
from kerasmem.memory.pipeline.stream import Stream
from kerasmem.processes.host import host_peak, resident_bytes
from kerasmem.records import DataMemory, PipelineStage
from kerasmem.types import Dataset, Tensors
from kerasmem.units import MIB, format_bytes


def inspect_data(
    data: Dataset, batch_size: int = 32, *, batches: int = 8
) -> DataMemory:
    """Measure the host memory of `data` when a model is fitted with it.

    Nothing is trained. The first batches pass through a model without weights. A
    generator can be read only once and is therefore not read. To measure a generator,
    pass the function that creates it.

    Args:
        data: Data in a form that `fit` accepts: arrays, a `tf.data.Dataset`, a
            `PyDataset`, a torch `DataLoader` or a generator. Also a function without
            arguments that returns such data, or the path of a data file.
        batch_size: Integer, at least 1. Number of samples per batch, for arrays only.
            Defaults to 32.
        batches: Integer, at least 0. Number of batches to measure. With 0, only the
            estimates are returned. Defaults to 8.

    Returns:
        A `DataMemory`. Its `.table()` lists the stages with advice on how to reduce
        their memory.

    Raises:
        ConfigError: If `batch_size` or `batches` is out of range.
        DataError: If `data` has none of these forms.

    Example:
        >>> import numpy as np
        >>> figures = inspect_data((np.zeros((64, 4)), np.zeros(64)), batches=0)
        >>> figures.stages[0].nbytes, figures.batch_bytes
        (2048, 1280)
    """
    batch_size = Whole(1).check("inspect_data", "batch_size", batch_size)
    batches = Whole(0).check("inspect_data", "batches", batches)
    make = data if callable(data) and inspect.isroutine(data) else None
    if make:
        data = make()
    elif isinstance(data, (str, Path)):
        data = load_data(data).train
    if isinstance(data, Iterator) and not is_array_data(data):
        # A generator creates its local variables when it starts.
        first = next(data, None) if make else None
        parts = tuple(stages(data))
        size = None if first is None else leaf_bytes(first)
        data = make() if make else None
    else:
        parts, size = tuple(stages(data)), _batch_bytes(data, batch_size)
    measured_bytes = None
    if batches and data is not None:
        measured_bytes = _measure(data, batch_size, batches)
    return DataMemory(
        stages=parts,
        batch_size=batch_size,
        batch_bytes=size,
        measured_bytes=measured_bytes,
        measured_batches=0 if measured_bytes is None else batches,
    )


def _batch_bytes(data: Dataset, batch_size: int) -> int:
    first = first_samples(data)
    if not is_array_data(data):
        return leaf_bytes(first)
    count = sample_count(data) or 1
    return leaf_bytes(first) * min(batch_size, count) // count


def _measure(data: Dataset, batch_size: int, batches: int) -> int:
    arguments = fit_arguments(data, batch_size)
    if is_array_data(data):
        del arguments["batch_size"]
        arguments = {"x": arguments, "batch_size": batch_size}
    nothing = _Nothing(name="nothing")
    nothing.predict(np.zeros((2, 1)), verbose=0)  # Loads the framework's own memory.
    # The C library would otherwise serve new requests from freed memory, which the
    # measurement would miss.
    trim_heap()
    peak = host_peak(lambda: True)
    try:
        peak.reset()
        before = resident_bytes()
        nothing.predict(**arguments, steps=batches, verbose=0)
        return max(0, peak.read().peak_bytes - before)
    finally:
        peak.close()


class _Nothing(keras.Model):
    """A model that accepts any batch and computes nothing."""

    def call(self, inputs: Tensors) -> Any:
        """Return one zero per sample."""
        first = keras.tree.flatten(inputs)[0]
        return keras.ops.zeros((keras.ops.shape(first)[0], 1))


_TUNED_PREFETCH = 2  # Initial buffer size of TensorFlow's automatic tuning.


def stages(data: Dataset) -> Iterator[PipelineStage]:
    """Yield the stages of `data`, starting at the source."""
    if is_array_data(data):
        yield from array_stages(data)
    elif tf_data.is_dataset(data):
        yield from filter(None, map(_dataset_stage, tf_data.stages(data)))
    elif isinstance(data, keras.utils.PyDataset):
        yield from _py_dataset_stages(data)
    elif _is_loader(data):
        yield from _loader_stages(data)
    else:
        yield from _iterable_stages(data)


def _py_dataset_stages(data: Dataset) -> Iterator[PipelineStage]:
    array_list = list(
        _stream_stages(data) if isinstance(data, Stream) else held_stages(vars(data))
    )
    yield from array_list
    size = leaf_bytes(first_samples(data))
    queue = data.max_queue_size if data.workers else 1
    yield _queue(queue, size, f"max_queue_size=2 would hold {format_bytes(2 * size)}.")
    if data.workers > 1 and data.use_multiprocessing:
        yield PipelineStage(
            f"{data.workers} worker processes",
            data.workers * (sum(stage.nbytes or 0 for stage in array_list) + size),
            "Every process may hold a separate copy. use_multiprocessing=False shares "
            "one copy.",
        )


def _stream_stages(data: Stream) -> Iterator[PipelineStage]:
    yield PipelineStage("order of the samples", data.order_bytes)
    yield PipelineStage("pages of the files, at most", data.most_mapped_bytes)
    if data.loaded_bytes:
        yield PipelineStage(
            "arrays in memory",
            data.loaded_bytes,
            "Save the arrays with numpy.save and open them with "
            "numpy.load(path, mmap_mode='r').",
        )


def _is_loader(data: Dataset) -> bool:
    # The class is compared by name to avoid importing torch.
    names = (f"{c.__module__}.{c.__name__}" for c in type(data).__mro__)
    return "torch.utils.data.dataloader.DataLoader" in names


def _loader_stages(data: Dataset) -> Iterator[PipelineStage]:
    array_list = list(held_stages(_attributes(data.dataset)))
    yield from array_list
    size, workers = leaf_bytes(first_samples(data)), data.num_workers
    less = f"prefetch_factor=1 would hold {format_bytes(max(workers, 1) * size)}."
    yield _queue(max(workers * (data.prefetch_factor or 0), 1), size, less)
    if workers:
        yield PipelineStage(
            f"{workers} worker processes",
            workers * sum(stage.nbytes or 0 for stage in array_list),
            "Every process may hold a separate copy. num_workers=0 avoids copies.",
        )
    if data.pin_memory:
        yield PipelineStage("a batch in pinned memory", size)


def _iterable_stages(data: Dataset) -> Iterator[PipelineStage]:
    is_generator = inspect.isgenerator(data)
    yield from held_stages(
        inspect.getgeneratorlocals(data) if is_generator else _attributes(data)
    )
    yield PipelineStage(
        f"iteration over {type(data).__name__}",
        None,
        "Other memory appears only in the measurement. Pass the function that creates "
        "the data, or a keras.utils.PyDataset.",
    )


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})  # Objects with slots have no `__dict__`.


def _queue(batches: int, batch_bytes: int, less: str) -> PipelineStage:
    name = f"queue of {batches} batches" if batches > 1 else "one batch in transit"
    size = batches * batch_bytes
    return PipelineStage(name, size, less if batches > 2 and size >= MIB else None)


def array_stages(data: Dataset) -> Iterator[PipelineStage]:
    """Yield the arrays of `data`, and the copies that `fit` creates."""
    cast = copy_bytes = 0
    for role, part in first_samples(data).items():
        for name, leaf in named_leaves(part).items():
            if is_sparse(leaf):
                yield PipelineStage(f"{role} {name}".strip(), leaf_bytes(leaf))
                continue
            array = _as_array(leaf)
            yield _array_stage(f"{role} {name}".strip(), array)
            size = _in_floatx(array)
            copy_bytes += size
            cast += size if size != array.nbytes else 0
    if cast:
        yield PipelineStage(f"copy in {keras.config.floatx()}", cast)
    if backends.current().copies_arrays:
        yield PipelineStage(
            "copies made by TensorFlow",
            2 * copy_bytes,
            "One during the start of fit, one until its end. km.memory.stream needs "
            "no copies.",
        )


def held_stages(attributes: Mapping[str, Any]) -> Iterator[PipelineStage]:
    """Yield the arrays among attributes, including those in lists, tuples and dicts."""
    ids: set[int] = set()
    for attribute, value in attributes.items():
        name = attribute.strip("_")
        leaves = [leaf for leaf in keras.tree.flatten(value) if is_array(leaf)]
        arrays = [leaf for leaf in leaves if id(leaf) not in ids]
        ids |= set(map(id, arrays))
        if len(arrays) == 1:
            yield _array_stage(name, arrays[0])
        elif arrays:
            yield PipelineStage(f"{name}, {len(arrays):,} arrays", leaf_bytes(arrays))


def leaf_bytes(parts: Any) -> int:
    """Return the total bytes of all arrays in a structure."""
    leaves: list[Any] = []
    for leaf in keras.tree.flatten(parts):
        if is_sparse(leaf):
            leaves += leaf.data, leaf.indices, leaf.indptr
        elif leaf is not None:
            leaves.append(leaf)
    return sum(x.nbytes if is_array(x) else np.asarray(x).nbytes for x in leaves)


def is_array(value: Any) -> bool:
    """Return whether a value has the attributes `nbytes` and `dtype`."""
    return hasattr(value, "nbytes") and hasattr(value, "dtype")


def _as_array(leaf: Any) -> Any:
    array = leaf if is_array(leaf) else np.asarray(leaf)
    if not array.shape:
        raise DataError(
            "Expected arrays with one entry per sample. Received: "
            f"{type(leaf).__name__} {leaf!r}. Next: convert a list of numbers with "
            "numpy.asarray."
        )
    return array


def _array_stage(label: str, array: Any) -> PipelineStage:
    if mapping_of(array) is not None:
        advice = "Its pages count as resident once read. km.memory.stream frees them."
        return PipelineStage(f"{label}, on disk", 0, advice)
    advice, excess = None, array.nbytes - _in_floatx(array)
    if excess > 0:
        advice = (
            f"Keras trains in {keras.config.floatx()}. Casting {array.dtype} "
            f"beforehand saves {format_bytes(excess)}."
        )
    return PipelineStage(label, array.nbytes, advice)


def _in_floatx(array: Any) -> int:
    # Keras casts all floats to `floatx`.
    is_float = str(array.dtype).startswith("float")
    size = (
        np.dtype(keras.config.floatx()).itemsize if is_float else array.dtype.itemsize
    )
    return int(np.prod(array.shape)) * size


def _dataset_stage(stage: DatasetStage) -> PipelineStage | None:
    nbytes, size = stage.element_bytes, stage.size
    everything = _times(stage.elements, nbytes)
    match stage.kind:
        case "TensorSlice" | "Tensor":
            advice = (
                "A copy of the arrays. km.memory.stream reads arrays from disk instead."
            )
            return _large("tensors from arrays", everything, advice)
        case "Cache" if stage.file:
            return PipelineStage(f"cache in the file {stage.file}", 0)
        case "Cache":
            advice = (
                "Holds every element. Cache before operations that enlarge elements, "
                "or use cache(file)."
            )
            return _large("cache in memory", everything, advice)
        case "Shuffle":
            count = min(size or 0, stage.elements or size or 0)
            advice = (
                f"Holds {count:,} elements of {format_bytes(nbytes or 0)}. Shuffle "
                "before operations that enlarge elements (decode, batch), or use a "
                "smaller buffer."
            )
            return _large("shuffle buffer", _times(count, nbytes), advice)
        case "Prefetch":
            return _prefetch(stage)
    return _passing_stage(stage)


def _passing_stage(stage: DatasetStage) -> PipelineStage | None:
    nbytes, size = stage.element_bytes, stage.size
    match stage.kind:
        case "ParallelMap":
            calls = tf_data.processors() if size == AUTOTUNE else size
            return PipelineStage(f"{calls} parallel calls", _times(calls, nbytes))
        case "Interleave" | "ParallelInterleave":
            count = f"{size} datasets" if (size or 0) > 0 else "datasets"
            advice = (
                "Each open dataset has separate buffers, which only a measurement "
                "includes. A smaller cycle_length limits their number."
            )
            return PipelineStage(f"{count} read in turn", None, advice)
        case "FlatMap":
            name = "datasets or batches from a function"
            advice = "Only a measurement includes the memory of the function."
            return PipelineStage(name, None, advice)
        case "Batch" | "PaddedBatch" | "ParallelBatch":
            return PipelineStage("batch", nbytes)
    return None


def _prefetch(stage: DatasetStage) -> PipelineStage:
    two = _times(_TUNED_PREFETCH, stage.element_bytes)
    if stage.size == AUTOTUNE:
        advice = "May grow. prefetch(2) limits the buffer."
        return PipelineStage("prefetch, tuned by TensorFlow", two, advice)
    name, size = f"prefetch of {stage.size}", _times(stage.size, stage.element_bytes)
    if (stage.size or 0) <= _TUNED_PREFETCH:
        return PipelineStage(name, size)
    return _large(name, size, f"prefetch(2) would hold {format_bytes(two or 0)}.")


def _large(name: str, size: int | None, advice: str) -> PipelineStage:
    return PipelineStage(name, size, advice if size and size >= MIB else None)


def _times(count: int | None, size: int | None) -> int | None:
    return None if count is None or size is None else count * size
