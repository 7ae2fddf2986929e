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
    inside = [c.cell_contents for c in getattr(function, "__closure__", None) or ()]
    inside += getattr(function, "versions", ())  # of a monitor's own step
    found: list[Callable[..., Any]] = []
    for each in inside:
        if callable(each) and id(each) not in seen:
            seen.add(id(each))
            found += _compiled(each, counter, seen)
    return found
