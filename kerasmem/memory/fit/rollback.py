"""A copy of the training's state, recent enough to go back to."""

import time
from typing import Any

from kerasmem.backends.training import Steps

_MOST_OF_THE_TIME = 0.005


class Rollback:
    """Keeps one copy on the host of all that steps change.

    It is renewed before a step that must not be lost, at the start of an epoch, and
    whenever copies have taken less than a two-hundredth of the time so far.

    Args:
        steps: how the model is trained, or evaluated.

    Attributes:
        age: number of steps since the copy.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._copy: Any = None
        self._due_at = 0.0
        self.age = 0

    def keep(self, state: Any, *, now: bool) -> None:
        """Renew the copy if it is time.

        Args:
            state: the state before the next step.
            now: whether it is time in any case.
        """
        start = time.perf_counter()
        if not now and start < self._due_at:
            self.age += 1
            return
        # Not without a copy meanwhile: what was told a device may fail here.
        self._copy = self._steps.snapshot(state)
        end = time.perf_counter()
        self._due_at = end + (end - start) / _MOST_OF_THE_TIME
        self.age = 0

    def expire(self) -> None:
        """Have the copy renewed before the next step."""
        self._due_at = 0.0

    def back(self, state: Any) -> Any:
        """Go back to the copy; return the state to go on with."""
        self.age = 0
        return self._steps.restore(self._copy, state)

    def drop(self) -> None:
        """Give the memory of the copy back."""
        self._copy = None
