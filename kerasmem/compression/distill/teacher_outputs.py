"""Adds cached teacher outputs to the inputs of a dataset."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from kerasmem.compression.distill.cache import (
    AnswerStore,
    Cache,
    Column,
    clipped,
    largest_logits,
    sample_keys,
    to_array,
    with_answers,
)
from kerasmem.compression.distill.comparison import Comparable, check_outputs
from kerasmem.compression.distill.objective import Batch, Objective
from kerasmem.errors import DataError
from kerasmem.files.data import few_inputs, is_array_data, sample_count
from kerasmem.files.data.forms import first_samples
from kerasmem.graph.outputs import OutputTask
from kerasmem.graph.values import model_digest
from kerasmem.types import Dataset, Tensor, Tensors


class CachedAnswers:
    """Cached outputs of one teacher for all samples of a dataset.

    `batch` contains the student outputs for the first sample. `part` is a subfolder of
    the cache folder.

    Raises:
        ModelError: If the outputs of teacher and student are incompatible.
    """

    def __init__(
        self,
        objective: Objective,
        batch: Batch,
        data: Dataset,
        cache: Cache,
        part: str,
    ) -> None:
        teacher, self._cache = objective.frozen.model, cache
        sample = few_inputs(teacher, data)
        self._ways: list[Comparable] = []
        if objective.losses_on_outputs:
            answers, _ = objective.frozen.answer(sample, [])
            check_outputs(answers, batch.predictions)
            self._ways = objective.comparables(replace(batch, answers=answers))
        self._model = _TeacherOutputs(objective, self._ways)
        first = self._model.predict_on_batch(sample)
        self._tops = [self._top(n, array.shape[-1]) for n, array in enumerate(first)]
        columns = [
            Column(f"{name}.bin", str(array.dtype), array.shape[1:])
            for name, array in self._packed(first).items()
        ]
        self._folder = Path(cache.folder) / part
        refs = [f"{ref.path}:{ref.index}" for ref in objective.frozen.refs]
        self._store = AnswerStore(self._folder, model_digest(teacher, refs), columns)
        self._fill(data)
        self._arrays = self._store.arrays()

    def rows(self, x: Tensor) -> list[Any]:
        """Returns the outputs for a batch. Raises `DataError` for unknown samples."""
        keys = sample_keys(x)
        unknown = [key for key in keys if key not in self._store.rows]
        if unknown:
            raise self._unknown(len(unknown), len(keys))
        numbers = np.array([self._store.rows[key] for key in keys])
        whole = len(numbers) == len(self._store.rows)
        in_order = whole and bool((numbers == np.arange(len(numbers))).all())
        rest = (array if in_order else array[numbers] for array in self._arrays)
        names = "places", "values", "rest"
        return [
            next(rest) if top_k is None else {name: next(rest) for name in names}
            for top_k in self._tops
        ]

    def _fill(self, data: Dataset) -> None:
        if self._store.complete and not is_array_data(data):
            return  # `rows` reports unknown samples
        for x in _chunks(data, self._cache.batch_size):
            keys = sample_keys(x)
            new = {k: i for i, k in enumerate(keys) if k not in self._store.rows}
            if new and self._store.complete:
                raise self._unknown(len(new), len(keys))
            if new:
                places = list(new.values())
                part = keras.tree.map_structure(
                    lambda array, places=places: array[places], x
                )
                answers = self._packed(self._model.predict_on_batch(part))
                self._store.append(list(new), list(answers.values()))
        self._store.finish()

    def _packed(self, answers: list[np.ndarray]) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        for number, (array, top_k) in enumerate(zip(answers, self._tops, strict=True)):
            if top_k is None:
                columns[f"answer_{number}"] = clipped(array, self._cache.dtype)
                continue
            for name, each in largest_logits(array, top_k).items():
                is_place = name == "places"
                column = each if is_place else clipped(each, self._cache.dtype)
                columns[f"answer_{number}_{name}"] = column
        return columns

    def _top(self, number: int, classes: int) -> int | None:
        top_k = self._cache.top_k
        if top_k is None or number >= len(self._ways) or top_k >= classes:
            return None
        return top_k if self._ways[number].task is OutputTask.CATEGORICAL else None

    def _unknown(self, count: int, of: int) -> DataError:
        return DataError(
            f"The cache in {str(self._folder)!r} is of other data: it has no answers "
            f"to {count} of {of} samples. Random augmentation also changes samples. "
            "Next: remove it, use another folder, or distill without cache=."
        )


class AnsweredBatches(keras.utils.PyDataset):
    """A `PyDataset` that adds cached teacher outputs to the inputs of another one."""

    def __init__(
        self, dataset: keras.utils.PyDataset, cached: Sequence[CachedAnswers]
    ) -> None:
        super().__init__(workers=dataset.workers, max_queue_size=dataset.max_queue_size)
        self._dataset = dataset
        self._cached = cached

    @property
    def num_batches(self) -> int | None:
        """Number of batches per epoch."""
        return self._dataset.num_batches

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns a batch with teacher outputs."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self._dataset[index])
        x = with_answers(x, [answers.rows(x) for answers in self._cached])
        return keras.utils.pack_x_y_sample_weight(x, y, weight)

    def on_epoch_begin(self) -> None:
        """Calls the wrapped dataset."""
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Calls the wrapped dataset."""
        self._dataset.on_epoch_end()


def with_cached_answers(
    data: Dataset,
    objectives: Sequence[Objective],
    batch: Batch,
    cache: Cache,
    part: str = "",
) -> Any:
    """Returns data whose inputs include the teacher outputs.

    Raises:
        DataError: If the cache belongs to another teacher or other data.
    """
    parts = [f"{part}/teacher_{i}" for i in range(len(objectives))]
    folders = [part] if len(objectives) == 1 else [p.lstrip("/") for p in parts]
    answers = [
        CachedAnswers(objective, batch, data, cache, folder)
        for objective, folder in zip(objectives, folders, strict=True)
    ]
    if isinstance(data, keras.utils.PyDataset):
        return AnsweredBatches(data, answers)
    samples = first_samples(data)
    x = with_answers(samples["x"], [one.rows(samples["x"]) for one in answers])
    y, weight = samples.get("y"), samples.get("sample_weight")
    return (x, y, weight) if weight is not None else (x,) if y is None else (x, y)


def can_cache(data: Dataset) -> bool:
    """Returns whether `data` can be cached: arrays or a `PyDataset`."""
    return isinstance(data, keras.utils.PyDataset) or is_array_data(data)


def _chunks(data: Dataset, size: int) -> Iterator[Any]:
    if not isinstance(data, keras.utils.PyDataset):
        x = first_samples(data)["x"]
        for start in range(0, sample_count(data) or 0, size):
            yield keras.tree.map_structure(
                lambda array, start=start: to_array(array[start : start + size]), x
            )
        return
    waiting: list[Any] = []
    for number in range(len(data)):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data[number])
        waiting.append(keras.tree.map_structure(to_array, x))
        if sum(len(keras.tree.flatten(x)[0]) for x in waiting) >= size:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    return keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *batches)


class _TeacherOutputs(keras.Model):
    """Returns the teacher outputs that the losses need, flat, in float32."""

    def __init__(self, objective: Objective, ways: list[Comparable]) -> None:
        super().__init__(name="asked", autocast=False)
        self.teacher = objective.frozen.model
        self._read = objective.frozen.read
        self._ways = ways

    def call(self, inputs: Tensors) -> list[Any]:
        """Returns logits or values of every output, then the features."""
        outputs, features = self._read(inputs, training=False)
        flat = keras.tree.flatten(outputs)[: len(self._ways)]
        full = [ops.cast(x, "float32") for x in flat]
        logits = [
            way.teacher_values(x) for way, x in zip(self._ways, full, strict=True)
        ]
        return [*logits, *(ops.cast(x, "float32") for x in features.values())]
