"""What a callback hangs on a model for one `fit`, and how it comes off again."""

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
    """Return True while `model.fit` runs in this thread."""
    return _frame_of(("fit",), model, sys._getframe()) is not None


def callbacks_of_fit(model: Model) -> list[Any] | None:
    """Return the callbacks that the running `fit` calls, None if there are none."""
    frame = _frame_of(("fit",), model, sys._getframe())
    container = frame and frame.f_locals.get("callbacks")
    return getattr(container, "callbacks", None)


def is_running(model: Model, thread: int) -> bool:
    """Return True while `fit`, `evaluate` or `predict` of the model runs in a thread.

    Args:
        model: the model.
        thread: identifier of the thread.
    """
    # Private by name, documented by Python: there is no other way to a stack.
    frame = sys._current_frames().get(thread)
    return _frame_of(_RUNNING, model, frame) is not None


def is_called_by_fit(model: Model) -> bool:
    """Return True if `model.fit` itself made the call into kerasmem.

    False in a callback of `fit`, though `fit` runs then too.
    """
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
        frame = frame.f_back
    return frame is not None and frame is _frame_of(("fit",), model, frame)


def _frame_of(
    methods: tuple[str, ...], model: Model, frame: FrameType | None
) -> FrameType | None:
    # Keras tells nobody that a `fit` was broken off by an exception or Ctrl-C, and a
    # flag set when it began would stand for ever. The call stack cannot be wrong:
    # `fit` runs if and only if it is on it.
    while frame is not None:
        if frame.f_code.co_name in methods and frame.f_locals.get("self") is model:
            return frame
        frame = frame.f_back
    return None


class Attachment:
    """Undoes what was done to a model, at the latest when the model is used next.

    Keras calls `on_train_end` only after a `fit` that ends well. After an exception
    or Ctrl-C the attachment undoes itself when the model is next fitted (with or
    without callbacks), trained on a batch, or saved.

    Args:
        model: the model of the running `fit`.
        undo: called once, on `release()`.
        for_fit: False in a training loop of the user's own, where nothing tells its
            end but `release()`.
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
            # Every way of saving a model asks its optimizer for its config.
            call_before(model.optimizer, "get_config", self._at_save),
        ]

    def release(self) -> None:
        """Undo everything; a second call is a no-op. Works during a `fit` too."""
        if not self._undo:
            return
        with ExitStack() as everything:  # also if a part of it fails
            everything.callback(retrace, self._model)
            for undo in self._undo:
                everything.callback(undo)
            self._undo = []

    def _at_next_training(self) -> None:
        if is_called_by_fit(self._model) or not is_fitting(self._model):
            self.release()

    def _at_save(self) -> None:
        if not is_fitting(self._model):  # a ModelCheckpoint may save all the time
            self.release()


class AttachedCallback(keras.callbacks.Callback):
    """A callback that hangs something on the model for one `fit`, abstract."""

    async_safe = True
    _attachment: Attachment | None = None

    def attach(
        self, model: Model, undo: Callable[[], None], *, for_fit: bool = True
    ) -> None:
        """Note what was hung on the model, and what takes it off; see `Attachment`.

        Args:
            model: the model of the running `fit`.
            undo: called once, when the callback lets go.
            for_fit: False in a training loop of the user's own.
        """
        self._attachment = Attachment(model, undo, for_fit=for_fit)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Begin anew."""
        self.detach()

    def on_train_end(self, logs: Logs = None) -> None:
        """Leave no trace."""
        self.detach()

    def detach(self) -> None:
        """Take everything off the model now; a second call is a no-op."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.release()


def retrace(model: Model) -> None:
    """Have the next training step traced anew; it may have been traced otherwise."""
    model.train_function = None
    if is_fitting(model):
        # Of the class, not of the object: there it is how an attachment learns that
        # a new `fit` begins.
        type(model).make_train_function(model)
