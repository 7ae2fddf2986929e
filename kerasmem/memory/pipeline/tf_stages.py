"""The host bytes of a `tf.data` pipeline, stage by stage."""

from collections.abc import Iterator
from typing import Any

from kerasmem.backends import tf_data
from kerasmem.backends.tf_data import AUTOTUNE, DatasetStage
from kerasmem.records import PipelineStage
from kerasmem.units import MIB, format_bytes

_TUNED_PREFETCH = 2  # elements that TensorFlow starts with when it tunes the buffer


def dataset_stages(dataset: Any) -> Iterator[PipelineStage]:
    """Yield what each stage of a `tf.data.Dataset` may hold, sources first."""
    for stage in tf_data.stages(dataset):
        held = _HOLDS.get(stage.kind)
        if held is not None:
            yield held(stage)


def _source(stage: DatasetStage) -> PipelineStage:
    return _large(
        "tensors made of arrays",
        _times(stage.elements, stage.element_bytes),
        "A copy of the arrays; km.memory.stream reads them from disk instead.",
    )


def _cache(stage: DatasetStage) -> PipelineStage:
    if stage.file:
        return PipelineStage(f"cache in the file {stage.file}", 0)
    return _large(
        "cache in memory",
        _times(stage.elements, stage.element_bytes),
        "Holds every element: cache before what makes them larger, or cache(file).",
    )


def _shuffle(stage: DatasetStage) -> PipelineStage:
    held = min(stage.size or 0, stage.elements or stage.size or 0)
    return _large(
        "shuffle buffer",
        _times(held, stage.element_bytes),
        f"Holds {held:,} elements of {format_bytes(stage.element_bytes or 0)}: shuffle "
        "before what makes them larger (decode, batch), or fewer of them.",
    )


def _parallel(stage: DatasetStage) -> PipelineStage:
    calls = tf_data.processors() if stage.size == AUTOTUNE else stage.size
    size = _times(calls, stage.element_bytes)
    return PipelineStage(f"{calls} parallel calls", size)


def _interleave(stage: DatasetStage) -> PipelineStage:
    count = f"{stage.size} datasets" if (stage.size or 0) > 0 else "datasets"
    return PipelineStage(
        f"{count} read in turn",
        None,
        "Each open one holds buffers of its own, which only measuring shows; a smaller "
        "cycle_length bounds them.",
    )


def _made_by_function(stage: DatasetStage) -> PipelineStage:  # noqa: ARG001 - as others
    return PipelineStage(
        "datasets or batches that a function makes",
        None,
        "What the function or generator holds shows only in what is measured.",
    )


def _batch(stage: DatasetStage) -> PipelineStage:
    return PipelineStage("batch", stage.element_bytes)


def _prefetch(stage: DatasetStage) -> PipelineStage:
    two = _times(_TUNED_PREFETCH, stage.element_bytes)
    if stage.size == AUTOTUNE:
        advice = "May grow; prefetch(2) bounds it."
        return PipelineStage("prefetch, tuned by TensorFlow", two, advice)
    name, size = f"prefetch of {stage.size}", _times(stage.size, stage.element_bytes)
    if (stage.size or 0) <= _TUNED_PREFETCH:
        return PipelineStage(name, size)
    return _large(name, size, f"prefetch(2) would hold {format_bytes(two or 0)}.")


def _large(name: str, size: int | None, advice: str) -> PipelineStage:
    """Return the stage, with advice if there is something to gain."""
    return PipelineStage(name, size, advice if size and size >= MIB else None)


def _times(count: int | None, size: int | None) -> int | None:
    return None if count is None or size is None else count * size


_HOLDS = {
    "TensorSlice": _source,
    "Tensor": _source,
    "Cache": _cache,
    "Shuffle": _shuffle,
    "ParallelMap": _parallel,
    "Interleave": _interleave,
    "ParallelInterleave": _interleave,
    "FlatMap": _made_by_function,
    "Batch": _batch,
    "PaddedBatch": _batch,
    "ParallelBatch": _batch,
    "Prefetch": _prefetch,
}
