"""One step of an evaluation from several parts of a batch."""

from typing import Any

from kerasmem.backends.training import Step, Steps
from kerasmem.memory.fit.losses import LossFactors
from kerasmem.memory.fit.weighed_parts import WeighedParts


class EvaluationParts:
    """Runs a batch part by part through the model's own `test_step`.

    Keras's metrics add up samples, and the loss is one of them: it is a mean over the
    samples of the losses of all parts, each times what makes it count as in the whole.

    Args:
        model: the compiled model, built.
        evaluation: how it is evaluated.
        factors: multiplies its losses.
    """

    def __init__(self, model: Any, evaluation: Steps, factors: LossFactors) -> None:
        self._evaluation = evaluation
        self._factors = factors
        self._weighed = WeighedParts(model, evaluation)
        self._function = evaluation.function_of(self._step())
        self.is_open = False

    def open(self, state: Any) -> Any:
        """Have batches go in parts; return the state to go on with."""
        self._factors.install()
        self.is_open = True
        return state

    def close(self, state: Any) -> Any:
        """Have batches go as a whole; return the state to go on with."""
        self.release()
        return state

    def release(self) -> None:
        """Have batches go as a whole when there is no state any more."""
        self.is_open = False

    def run(self, state: Any, batch: Any, count: int) -> tuple[Any, Any]:
        """Return logs and state after one batch.

        Args:
            state: the state of before.
            batch: the batch.
            count: the number of parts, from 1 to that of the samples.
        """
        logs = None
        for part in self._weighed.of(state, batch, count):
            logs, state = self._evaluation.run(self._function, state, part)
        return logs, state

    def _step(self) -> Step:
        original = self._evaluation.step

        def step(*arguments: Any) -> Any:
            *state, (batch, (_, factors)) = arguments
            with self._factors.given(factors):
                return original(*state, batch)

        return step
