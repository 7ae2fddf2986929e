"""Which of several runs no other run beats."""

from collections.abc import Sequence

Point = tuple[float, float]
"""Two costs, such as bytes and milliseconds; less is better."""


def front(points: Sequence[Point]) -> list[bool]:
    """Return for each point whether it is on the Pareto front.

    It is, if no other point costs less in one way and no more in the other.

    Example:
        >>> front([(1, 3), (2, 2), (2, 3), (3, 1)])
        [True, True, False, True]
    """
    least = float("inf")  # of the second cost, among points of a smaller first one
    on_front = dict.fromkeys(range(len(points)), False)
    order = sorted(on_front, key=lambda number: points[number])
    for place, number in enumerate(order):
        first, second = points[number]
        twin = place > 0 and points[order[place - 1]] == (first, second)
        on_front[number] = on_front[order[place - 1]] if twin else second < least
        least = min(least, second)
    return list(on_front.values())
