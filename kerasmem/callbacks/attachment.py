"""What a callback hangs on a model for one `fit`, and how it comes off again."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from kerasmem.backends import shadow
from kerasmem.callbacks.running import is_called_by_fit, is_fitting


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
        self, model: Any, undo: Callable[[], None], *, for_fit: bool = True
    ) -> None:
        self._model = model
        retrace(model)
        self._undo = [undo]
        if for_fit:
            self._undo += self._watch()

    def _watch(self) -> list[Callable[[], None]]:
        model = self._model
        return [
            shadow(model, "make_train_function", self._at_next_training),
            # Twice: `save` of the model may find another optimizer in it for the
            # moment, and `keras.saving.save_model` does not call it.
            shadow(model, "save", self._at_save),
            shadow(model.optimizer, "save_own_variables", self._at_save),
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

    def _at_next_training(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if is_called_by_fit(self._model) or not is_fitting(self._model):
            self.release()
        return original(*args, **kwargs)

    def _at_save(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_fitting(self._model):  # a ModelCheckpoint may save all the time
            self.release()
        return original(*args, **kwargs)


def retrace(model: Any) -> None:
    """Have the next training step traced anew; it may have been traced otherwise."""
    model.train_function = None
    if is_fitting(model):
        # Of the class, not of the object: there it is how an attachment learns that
        # a new `fit` begins.
        type(model).make_train_function(model)
