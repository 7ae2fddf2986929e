"""How far a model walks through our code: `python -m tests.walks`.

A walk is the functions of kerasmem that receive the model which was handed in as an
argument, each once, counted by the profile hook of Python. Of a monitored step it is
all functions of kerasmem that run in it, whatever they receive.
"""

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np

import kerasmem as km


def _arguments(frame: types.FrameType) -> list[Any]:
    named = inspect.getargvalues(frame)
    rest = frame.f_locals.get(named.varargs or "", ())
    words = frame.f_locals.get(named.keywords or "", {})
    return [*map(frame.f_locals.get, named.args), *rest, *words.values()]


@contextmanager
def walk(model: Any = None, until: str = "") -> Iterator[list[str]]:
    """Return a scope that lists the functions of ours that receive `model`.

    What Python writes for a dataclass is none of ours.

    Args:
        model: the one that is followed; None for all functions that run.
        until: name of the function that ends the walk, whatever it receives.
    """
    stops: list[str] = []

    def see(frame: types.FrameType, event: str, value: Any) -> None:
        del value
        module = frame.f_globals.get("__name__", "")
        is_written = frame.f_code.co_filename != "<string>"
        if event != "call" or not module.startswith("kerasmem.") or not is_written:
            return
        name = f"{module.removeprefix('kerasmem.')}.{frame.f_code.co_qualname}"
        if name == until:
            sys.setprofile(None)
        elif name not in stops and (
            model is None or any(one is model for one in _arguments(frame))
        ):
            stops.append(name)

    sys.setprofile(see)
    try:
        yield stops
    finally:
        sys.setprofile(None)


def _model() -> Any:
    layers = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    return model


_X, _Y = np.ones((32, 8), "float32"), np.ones((32, 4), "float32")


def compress() -> list[str]:
    """Return the walk to the first technique, which gets a copy."""
    model = _model()
    with walk(model, "compression.recipe.apply_technique") as stops:
        km.compress(model, km.Prune(0.5))
    return stops


def estimate_memory() -> list[str]:
    """Return the walk to an analytic estimate."""
    model = _model()
    with walk(model) as stops:
        km.estimate_memory(model, 8)
    return stops


def distill() -> list[str]:
    """Return the walk of a student."""
    teacher, student = _model(), _model()
    with walk(student) as stops:
        km.distill(teacher, student, (_X, _Y), verbose=0)
    return stops


def monitored_step() -> list[str]:
    """Return the walk of a compiled training step whose gradients are monitored."""
    scope = ExitStack()
    found: list[list[str]] = []

    def begin(batch: int, logs: Any) -> None:
        del logs
        if batch == 1:  # the one before is compiled as well
            found.append(scope.enter_context(walk()))

    def end(batch: int, logs: Any) -> None:
        del batch, logs
        scope.close()

    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_begin=begin),
        km.callbacks.GradientMonitor(),
        keras.callbacks.LambdaCallback(on_train_batch_end=end),
    ]
    _model().fit(_X, _Y, batch_size=8, callbacks=callbacks, verbose=0)
    (stops,) = found
    return stops


WALKS: dict[str, Callable[[], list[str]]] = {
    walk.__name__: walk for walk in (compress, estimate_memory, distill, monitored_step)
}

if __name__ == "__main__":
    for title, run in WALKS.items():
        found = run()
        sys.stdout.write("\n    ".join([f"{title:18} {len(found)}", *found, ""]))
