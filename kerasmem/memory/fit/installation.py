"""Putting surviving steps into a model for one `fit`, and taking them out again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from kerasmem.memory.fit.surviving_evaluation import SurvivingEvaluation
from kerasmem.memory.fit.surviving_training import SurvivingTraining


class Installation(keras.callbacks.Callback):
    """Has surviving steps stand in for the functions of epochs and validations.

    It comes last: where an epoch begins other callbacks find the function that Keras or
    they made, and may put another one there.

    Args:
        training: stands in for the training function.
        evaluation: stands in for the test function.
    """

    async_safe = True

    def __init__(
        self, training: SurvivingTraining, evaluation: SurvivingEvaluation
    ) -> None:
        super().__init__()
        self._training = training
        self._evaluation = evaluation
        self._epoch: int | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put the training step in."""
        self._training.whole = self.model.train_function
        self.model.train_function = self._training
        self._training.begin_epoch(epoch)
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take it out."""
        self.take_out()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put the step of a validation in."""
        self._evaluation.begin(self.model.test_function, self._epoch)
        self.model.test_function = self._evaluation

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take it out."""
        self.take_out()

    def take_out(self) -> None:
        """Put the functions back that were there before."""
        model = self.model
        if model is None:
            return
        if model.train_function is self._training:
            model.train_function = self._training.whole
        if model.test_function is self._evaluation:
            model.test_function = self._evaluation.whole
            self._evaluation.end()

    def end(self) -> None:
        """Leave nothing behind."""
        self.take_out()
        self._training.end()
        self._evaluation.end()


@contextmanager
def installed(model: Any, installation: Installation, callbacks: Any) -> Iterator[Any]:
    """Give the callbacks with which a `fit` uses surviving steps; leave nothing behind.

    Args:
        model: the model.
        installation: has the steps.
        callbacks: what the user gave `fit`.
    """
    try:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            installation.set_model(model)
            callbacks.callbacks.append(installation)
            yield callbacks
        else:
            yield [*_as_list(callbacks), installation]
    finally:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.remove(installation)
        installation.end()


def _as_list(callbacks: Any) -> Sequence[Any]:
    if callbacks is None:
        return []
    return callbacks if isinstance(callbacks, list | tuple) else [callbacks]
