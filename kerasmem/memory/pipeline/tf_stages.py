"""The host bytes of a `tf.data` pipeline, stage by stage."""

from collections.abc import Iterator
from typing import Any

from kerasmem.backends import tf_data
from kerasmem.backends.tf_data import AUTOTUNE, DatasetStage
from kerasmem.records import PipelineStage
from kerasmem.units import format_bytes

_TUNED_PREFETCH = 2  # elements that TensorFlow starts with when it tunes the buffer


def dataset_stages(dataset: Any) -> Iterator[PipelineStage]:
    """Yield what each stage of a `tf.data.Dataset` may hold, sources first."""
    for stage in tf_data.stages(dataset):
        held = _HOLDS.get(stage.kind)
        if held is not None:
            yield held(stage)


def _source(stage: DatasetStage) -> PipelineStage:
    return PipelineStage(
        "tensors made of arrays",
        _times(stage.elements, stage.element_bytes),
        "A copy of the arrays; km.memory.stream reads them from disk instead.",
    )


def _cache(stage: DatasetStage) -> PipelineStage:
    if stage.file:
        return PipelineStage(f"cache in the file {stage.file}", 0)
    size = _times(stage.elements, stage.element_bytes)
    advice = "Holds every element: cache before what makes them larger, or cache(file)."
    return PipelineStage("cache in memory", size, advice)


def _shuffle(stage: DatasetStage) -> PipelineStage:
    held = min(stage.size or 0, stage.elements or stage.size or 0)
    advice = None
    if stage.element_bytes and held > 1:
        one = format_bytes(stage.element_bytes)
        advice = f"{held:,} elements of {one}: shuffle before decoding, or fewer."
    return PipelineStage("shuffle buffer", _times(held, stage.element_bytes), advice)


def _parallel(stage: DatasetStage) -> PipelineStage:
    calls = tf_data.processors() if stage.size == AUTOTUNE else stage.size
    size = _times(calls, stage.element_bytes)
    return PipelineStage(f"{calls} parallel calls", size)


def _batch(stage: DatasetStage) -> PipelineStage:
    return PipelineStage("batch", stage.element_bytes)


def _prefetch(stage: DatasetStage) -> PipelineStage:
    if stage.size != AUTOTUNE:
        name = f"prefetch of {stage.size}"
        return PipelineStage(name, _times(stage.size, stage.element_bytes))
    return PipelineStage(
        "prefetch, tuned by TensorFlow",
        _times(_TUNED_PREFETCH, stage.element_bytes),
        "May grow; prefetch(2) bounds it.",
    )


def _times(count: int | None, size: int | None) -> int | None:
    return None if count is None or size is None else count * size


_HOLDS = {
    "TensorSlice": _source,
    "Tensor": _source,
    "Cache": _cache,
    "Shuffle": _shuffle,
    "ParallelMap": _parallel,
    "ParallelInterleave": _parallel,
    "Batch": _batch,
    "ParallelBatch": _batch,
    "Prefetch": _prefetch,
}
