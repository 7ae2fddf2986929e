"""Inputs of a batch with the teacher's answers beside them."""

from collections.abc import Iterable, Sequence
from typing import Any

_INPUTS, _ANSWERS = "kerasmem_inputs", "kerasmem_answers"


def with_answers(x: Any, answers: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Return inputs and answers as one structure that `fit` takes for `x`.

    Args:
        x: inputs of the student.
        answers: of every teacher what it gave: its outputs, flat, then its features.
    """
    # Tuples, because tf.data takes no lists.
    return {_INPUTS: x, _ANSWERS: tuple(map(tuple, answers))}


def split_answers(x: Any) -> tuple[Any, Sequence[Sequence[Any]] | None]:
    """Return inputs, and the answers if they are there."""
    if isinstance(x, dict) and set(x) == {_INPUTS, _ANSWERS}:
        return x[_INPUTS], x[_ANSWERS]
    return x, None
