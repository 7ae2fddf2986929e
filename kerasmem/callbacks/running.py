"""Whether a model is being fitted right now."""

import sys
from types import FrameType
from typing import Any

_OWN_MODULES = "kerasmem."
_RUNNING = ("fit", "evaluate", "predict")


def is_fitting(model: Any, thread: int | None = None) -> bool:
    """Return True while `model.fit` runs.

    Args:
        model: the model.
        thread: identifier of the thread that would run `fit`; None for this one.
    """
    return _frame_of(("fit",), model, _innermost_frame(thread)) is not None


def is_running(model: Any, thread: int | None = None) -> bool:
    """Return True while `fit`, `evaluate` or `predict` of the model runs.

    Args:
        model: the model.
        thread: identifier of the thread that would run it; None for this one.
    """
    return _frame_of(_RUNNING, model, _innermost_frame(thread)) is not None


def is_called_by_fit(model: Any) -> bool:
    """Return True if `model.fit` itself made the call into kerasmem.

    False in a callback of `fit`, though `fit` runs then too.
    """
    frame = _innermost_frame(None)
    while frame and frame.f_globals.get("__name__", "").startswith(_OWN_MODULES):
        frame = frame.f_back
    return frame is not None and frame is _frame_of(("fit",), model, frame)


def _innermost_frame(thread: int | None) -> FrameType | None:
    # Private by name, documented by Python: there is no other way to a stack.
    return sys._current_frames().get(thread) if thread else sys._getframe()


def _frame_of(
    methods: tuple[str, ...], model: Any, frame: FrameType | None
) -> FrameType | None:
    # Keras tells nobody that a `fit` was broken off by an exception or Ctrl-C, and a
    # flag set when it began would stand for ever. The call stack cannot be wrong:
    # `fit` runs if and only if it is on it.
    while frame is not None:
        if frame.f_code.co_name in methods and frame.f_locals.get("self") is model:
            return frame
        frame = frame.f_back
    return None
