"""The parts that data is made of, and the host bytes that each may hold."""

import inspect
from collections.abc import Iterator
from typing import Any

import keras

from kerasmem.backends import tf_data
from kerasmem.files.data import is_array_data
from kerasmem.files.data.forms import first_samples
from kerasmem.memory.pipeline.array_stages import array_stages, held_stages, leaf_bytes
from kerasmem.memory.pipeline.stream import Stream
from kerasmem.memory.pipeline.tf_stages import dataset_stages
from kerasmem.records import PipelineStage
from kerasmem.units import MIB, format_bytes


def stages(data: Any) -> Iterator[PipelineStage]:
    """Yield the parts of `data`, from the source on."""
    if is_array_data(data):
        yield from array_stages(data)
    elif tf_data.is_dataset(data):
        yield from dataset_stages(data)
    elif isinstance(data, keras.utils.PyDataset):
        yield from _py_dataset_stages(data)
    elif _is_loader(data):
        yield from _loader_stages(data)
    else:
        yield from _iterable_stages(data)


def _py_dataset_stages(data: Any) -> Iterator[PipelineStage]:
    held = list(
        _stream_stages(data) if isinstance(data, Stream) else held_stages(vars(data))
    )
    yield from held
    size = leaf_bytes(first_samples(data))
    queue = data.max_queue_size if data.workers else 1
    yield _queue(queue, size, f"max_queue_size=2 would hold {format_bytes(2 * size)}.")
    if data.workers > 1 and data.use_multiprocessing:
        yield PipelineStage(
            f"{data.workers} worker processes",
            data.workers * (sum(stage.nbytes or 0 for stage in held) + size),
            "Every process may end up with its own copy; use_multiprocessing=False "
            "shares one.",
        )


def _stream_stages(data: Stream) -> Iterator[PipelineStage]:
    yield PipelineStage("order of the samples", data.order_bytes)
    yield PipelineStage("pages of the files, at most", data.most_mapped_bytes)
    if data.loaded_bytes:
        yield PipelineStage(
            "arrays in memory",
            data.loaded_bytes,
            "numpy.save writes them, numpy.load(path, mmap_mode='r') maps them.",
        )


def _is_loader(data: Any) -> bool:
    # By name, so that torch is not imported for data that is none of it.
    names = (f"{c.__module__}.{c.__name__}" for c in type(data).__mro__)
    return "torch.utils.data.dataloader.DataLoader" in names


def _loader_stages(data: Any) -> Iterator[PipelineStage]:
    held = list(held_stages(_attributes(data.dataset)))
    yield from held
    size, workers = leaf_bytes(first_samples(data)), data.num_workers
    less = f"prefetch_factor=1 would hold {format_bytes(max(workers, 1) * size)}."
    yield _queue(max(workers * (data.prefetch_factor or 0), 1), size, less)
    if workers:
        yield PipelineStage(
            f"{workers} worker processes",
            workers * sum(stage.nbytes or 0 for stage in held),
            "Every process may end up with its own copy; num_workers=0 makes none.",
        )
    if data.pin_memory:
        yield PipelineStage("a batch in pinned memory", size)


def _iterable_stages(data: Any) -> Iterator[PipelineStage]:
    is_generator = inspect.isgenerator(data)
    yield from held_stages(
        inspect.getgeneratorlocals(data) if is_generator else _attributes(data)
    )
    yield PipelineStage(
        f"{type(data).__name__} that is iterated over",
        None,
        "What else it holds shows only in what is measured: hand in the function that "
        "makes it, or a keras.utils.PyDataset.",
    )


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})  # what has slots has none


def _queue(batches: int, batch_bytes: int, less: str) -> PipelineStage:
    name = f"queue of {batches} batches" if batches > 1 else "a batch on its way"
    size = batches * batch_bytes
    return PipelineStage(name, size, less if batches > 2 and size >= MIB else None)
