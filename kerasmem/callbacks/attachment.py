"""Temporary changes of a model during one `fit`."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import keras

from kerasmem.backends.patching import call_before
from kerasmem.types import Logs, Model

_OWN_MODULES = "kerasmem."
_RUNNING = ("fit", "evaluate", "predict")


def is_fitting(model: Model) -> bool:
    """Return whether `model.fit` is running in this thread."""
    return _frame_of(("fit",), model, sys._getframe()) is not None


def callbacks_of_fit(model: Model) -> list[Any] | None:
    """Return the callbacks of the running `fit`, or None."""
    frame = _frame_of(("fit",), model, sys._getframe())
    container = frame and frame.f_locals.get("callbacks")
    return getattr(container, "callbacks", None)


def is_running(model: Model, thread: int) -> bool:
    """Return whether `fit`, `evaluate` or `predict` of a model runs in a thread."""
    # The name is private but documented by Python. No public function returns a stack.
    frame = sys._current_frames().get(thread)
    return _frame_of(_RUNNING, model, frame) is not None


def is_called_by_fit(model: Model) -> bool:
    """Return whether `model.fit` itself called into kerasmem.

    False inside a callback of `fit`, although `fit` is running.
    """
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
        frame = frame.f_back
    return frame is not None and frame is _frame_of(("fit",), model, frame)


def _frame_of(
    methods: tuple[str, ...], model: Model, frame: FrameType | None
) -> FrameType | None:
    # Keras has no hook for a `fit` that ends with an exception or Ctrl-C, so a flag
    # could stay set. The call stack contains `fit` exactly while `fit` runs.
    while frame is not None:
        if frame.f_code.co_name in methods and frame.f_locals.get("self") is model:
            return frame
        frame = frame.f_back
    return None


class Attachment:
    """Reverts a temporary change of a model, at the latest before its next use.

    Keras calls `on_train_end` only if `fit` succeeds. After an exception or Ctrl-C,
    `undo` is called at the next `fit`, `train_on_batch` or save of the model. In a
    custom training loop (`for_fit=False`), only `release()` calls `undo`.
    """

    def __init__(
        self, model: Model, undo: Callable[[], None], *, for_fit: bool = True
    ) -> None:
        self._model = model
        retrace(model)
        self._undo = [undo]
        if for_fit:
            self._undo += self._watch()

    def _watch(self) -> list[Callable[[], None]]:
        model = self._model
        return [
            call_before(model, "make_train_function", self._at_next_training),
            # Saving a model always calls `get_config` of its optimizer.
            call_before(model.optimizer, "get_config", self._at_save),
        ]

    def release(self) -> None:
        """Revert all changes. Works during `fit`; a second call is a no-op."""
        if not self._undo:
            return
        with ExitStack() as everything:  # runs every undo even if one raises
            everything.callback(retrace, self._model)
            for undo in self._undo:
                everything.callback(undo)
            self._undo = []

    def _at_next_training(self) -> None:
        if is_called_by_fit(self._model) or not is_fitting(self._model):
            self.release()

    def _at_save(self) -> None:
        if not is_fitting(self._model):  # a ModelCheckpoint may save during `fit`
            self.release()


class AttachedCallback(keras.callbacks.Callback):
    """Abstract callback that changes the model for the duration of one `fit`."""

    async_safe = True
    _attachment: Attachment | None = None

    def attach(
        self, model: Model, undo: Callable[[], None], *, for_fit: bool = True
    ) -> None:
        """Register the function that reverts a change.

        Args:
            model: The model of the running `fit`.
            undo: Function that reverts the change. Called once, by `detach()`.
            for_fit: Boolean. False in a custom training loop. Defaults to True.
        """
        self._attachment = Attachment(model, undo, for_fit=for_fit)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Revert changes that an earlier `fit` left on the model."""
        self.detach()

    def on_train_end(self, logs: Logs = None) -> None:
        """Revert all changes of the model."""
        self.detach()

    def detach(self) -> None:
        """Revert all changes of the model now. A second call is a no-op."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.release()


def retrace(model: Model) -> None:
    """Trace the training step again, because an earlier trace lacks the change."""
    model.train_function = None
    if is_fitting(model):
        # The method of the class: an `Attachment` replaces the one of the instance and
        # would treat the call as the start of a new `fit`.
        type(model).make_train_function(model)
