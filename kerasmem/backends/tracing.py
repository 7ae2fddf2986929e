"""How many times the compiled training step of a model was traced."""

from collections.abc import Callable
from typing import Any


def count_traces(model: Any, counter: str) -> int | None:
    """Return how many traces the training step has, None before the first step.

    Args:
        model: a compiled model.
        counter: name of the method by which the framework's compiled functions tell
            their traces.
    """
    function = getattr(model, "train_function", None)
    counts = [getattr(f, counter)() for f in compiled_functions(function, counter)]
    # The step is compiled in several functions, one within the other.
    return max(counts, default=None)


def compiled_functions(function: Any, method: str) -> list[Callable[..., Any]]:
    """Return the compiled functions that a training step calls.

    Args:
        function: `model.train_function`.
        method: name of a method that only the framework's compiled functions have.
    """
    return _compiled(function, method, set())


def _compiled(function: Any, counter: str, seen: set[int]) -> list[Callable[..., Any]]:
    # Private: `model.train_function` is a plain function, and the compiled ones are in
    # its closure. Keras has no public way to them.
    if hasattr(function, counter):
        return [function]
    found: list[Callable[..., Any]] = []
    for cell in getattr(function, "__closure__", None) or ():
        if callable(cell.cell_contents) and id(cell.cell_contents) not in seen:
            seen.add(id(cell.cell_contents))
            found += _compiled(cell.cell_contents, counter, seen)
    return found
