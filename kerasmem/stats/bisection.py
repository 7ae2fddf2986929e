"""Bisection for the border of a condition."""

from collections.abc import Callable


def bisect(
    holds: Callable[[float], bool], good: float, bad: float, halvings: int
) -> float:
    """Return the number nearest to `bad` for which the condition holds.

    `holds` is called once per halving.

    Example:
        >>> bisect(lambda x: x >= 0.3, good=1.0, bad=0.0, halvings=3)
        0.375
    """
    for _ in range(halvings):
        middle = (good + bad) / 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good
