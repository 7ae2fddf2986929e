"""Times of things that take turns, on a machine that changes its speed."""

import time
from collections.abc import Callable, Sequence
from typing import Any

_WARM_UPS, _LEAST, _SECONDS = 2, 3, 3.0


def in_turns(
    calls: Sequence[Callable[[], Any]], most: int = 20, seconds: float = _SECONDS
) -> list[list[float]]:
    """Return the milliseconds that each of `calls` took, time after time.

    They take turns, so that a machine that changes its speed does so for all. The
    first two turns are not counted.

    Args:
        calls: what to time.
        most: turns that are counted, at most.
        seconds: time for each call, after which it ends; three turns are always
            counted.
    """
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(-_WARM_UPS, most):
        for call, found in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            if turn >= 0:
                found.append(1e3 * (time.perf_counter() - begin))
        enough = sum(map(sum, times)) > 1e3 * seconds * len(calls)
        if enough and turn >= _LEAST - 1:
            break
    return times
