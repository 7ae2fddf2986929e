"""Pareto front of several runs."""

from collections.abc import Sequence

Point = tuple[float, float]
"""Two costs, such as bytes and milliseconds. Lower is better."""


def front(points: Sequence[Point]) -> list[bool]:
    """Return whether each point is on the Pareto front.

    A point is on the front if no other point is better in one cost and not worse in the
    other.

    Example:
        >>> front([(1, 3), (2, 2), (2, 3), (3, 1)])
        [True, True, False, True]
    """
    least = float("inf")  # smallest second cost among points with a lower first cost
    on_front = dict.fromkeys(range(len(points)), False)
    order = sorted(on_front, key=lambda number: points[number])
    for place, number in enumerate(order):
        first, second = points[number]
        twin = place > 0 and points[order[place - 1]] == (first, second)
        on_front[number] = on_front[order[place - 1]] if twin else second < least
        least = min(least, second)
    return list(on_front.values())
