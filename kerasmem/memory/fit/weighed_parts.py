"""A batch in parts, with what each counts."""

from collections.abc import Sequence
from typing import Any

import keras

from kerasmem.backends.training import Steps
from kerasmem.memory.fit import losses


class WeighedParts:
    """Cuts batches into parts, and finds out what each counts of the whole.

    Args:
        model: the compiled model, built.
        steps: how it is trained or evaluated.
    """

    def __init__(self, model: Any, steps: Steps) -> None:
        self._model = model
        self._steps = steps
        self._is_masked = False
        self._count = steps.counting(self._valid) if losses.is_counted(model) else None

    def of(self, state: Any, batch: Any, count: int) -> list[tuple[Any, Any]]:
        """Return the parts of a batch, each with its share and factors.

        Args:
            state: the state before the step.
            batch: the batch.
            count: the number of parts, from 1 to that of the samples.
        """
        parts = self._steps.split(batch, count)
        return self._steps.weigh(parts, self._counted(state, parts))

    def _counted(self, state: Any, parts: Sequence[Any]) -> list[Any] | None:
        if self._count is None:
            return None
        first = self._count(state, parts[0])
        if not self._is_masked and losses.are_means(self._model):
            self._count = None
            return None
        return [first, *(self._count(state, part) for part in parts[1:])]

    def _valid(self, values: Sequence[tuple[Any, Any]], batch: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(values)):
            return losses.count_valid(self._model, batch, self._note_mask)

    def _note_mask(self) -> None:
        self._is_masked = True
