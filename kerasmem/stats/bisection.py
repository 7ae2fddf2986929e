"""Bisection: the border between numbers that hold and those that do not."""

from collections.abc import Callable


def bisect(
    holds: Callable[[float], bool], good: float, bad: float, halvings: int
) -> float:
    """Return the number nearest to `bad` that was found to hold, `good` if none.

    Args:
        holds: what is asked of a number; asked once in every halving.
        good: a number that is known to hold.
        bad: one that does not.
        halvings: how often the stretch between the two is halved.

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
