"""A teacher asked about many samples at once, its answers made ready to be kept."""

from typing import Any

import keras
import numpy as np
from keras import ops

from kerasmem.compression.distill.cache_config import Cache, stored
from kerasmem.compression.distill.cache_forms import top
from kerasmem.compression.distill.check import check_outputs
from kerasmem.compression.distill.comparable import Comparable
from kerasmem.compression.distill.lesson import Batch, Lesson
from kerasmem.compression.distill.store import Column
from kerasmem.graph.outputs import Task


class _Asked(keras.Model):
    """Returns what a lesson's losses need of the teacher, flat, in float32."""

    def __init__(self, lesson: Lesson, ways: list[Comparable]) -> None:
        super().__init__(name="asked", autocast=False)
        self.teacher = lesson.frozen.model
        self._read = lesson.frozen.read
        self._ways = ways

    def call(self, inputs: Any) -> list[Any]:
        """Return logits or values of every output, then the features."""
        outputs, features = self._read(inputs, training=False)
        flat = keras.tree.flatten(outputs)[: len(self._ways)]
        full = [ops.cast(x, "float32") for x in flat]
        logits = [way.taught(x) for way, x in zip(self._ways, full, strict=True)]
        return [*logits, *(ops.cast(x, "float32") for x in features.values())]


class Asking:
    """Asks one teacher and packs what it says.

    Args:
        lesson: the teacher and what is compared.
        batch: what the student and its data look like, for `sample`.
        sample: inputs of one sample or more.
        cache: how answers are kept.

    Raises:
        ModelError: if the outputs of the two models do not fit each other.
    """

    def __init__(self, lesson: Lesson, batch: Batch, sample: Any, cache: Cache) -> None:
        self._cache = cache
        ways = []
        if lesson.losses_on_outputs:
            answers, _ = lesson.frozen.answer(sample, [])
            check_outputs(answers, batch.predictions)
            ways = lesson.comparables(_with(batch, answers))
        self._ways = ways
        self._model = _Asked(lesson, ways)
        self._tops: list[int | None] = []
        first = self._model.predict_on_batch(sample)
        for number, array in enumerate(first):
            self._tops.append(self._top(number, array.shape[-1]))
        self.columns = [
            Column(f"{name}.bin", str(array.dtype), array.shape[1:])
            for name, array in self._packed(first).items()
        ]

    def __call__(self, x: Any) -> list[np.ndarray]:
        """Return one array per column for a batch of inputs."""
        return list(self._packed(self._model.predict_on_batch(x)).values())

    def unpacked(self, columns: list[np.ndarray]) -> list[Any]:
        """Return rows of all columns as a lesson takes them."""
        rest = iter(columns)
        names = "places", "values", "rest"
        return [
            next(rest) if top_k is None else {name: next(rest) for name in names}
            for top_k in self._tops
        ]

    def _packed(self, answers: list[np.ndarray]) -> dict[str, np.ndarray]:
        packed: dict[str, np.ndarray] = {}
        for number, (array, top_k) in enumerate(zip(answers, self._tops, strict=True)):
            if top_k is None:
                packed[f"answer_{number}"] = stored(array, self._cache.dtype)
                continue
            kept = top(array, top_k)
            packed[f"answer_{number}_places"] = kept["places"].astype("int32")
            for name in ("values", "rest"):
                packed[f"answer_{number}_{name}"] = stored(
                    kept[name], self._cache.dtype
                )
        return packed

    def _top(self, number: int, classes: int) -> int | None:
        """Return how many entries of an answer are kept, None for all."""
        top_k = self._cache.top_k
        if top_k is None or number >= len(self._ways) or top_k >= classes:
            return None
        return top_k if self._ways[number].task is Task.CATEGORICAL else None


def _with(batch: Batch, answers: Any) -> Batch:
    return Batch(
        answers, batch.predictions, None, None, batch.student, batch.loss, kept=False
    )
