"""How long things take on a machine that changes its speed: in turns, with a spread."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

_WARM_UPS, _LEAST, _SECONDS = 2, 3, 3.0


def in_turns(
    calls: Sequence[Callable[[], Any]],
    most: int = 20,
    seconds: float = _SECONDS,
    limit: float = math.inf,
) -> list[list[float]]:
    """Return the milliseconds that each of `calls` took, time after time.

    They take turns, so that a machine that changes its speed does so for all. The
    first two turns are not counted.

    Args:
        calls: what to time.
        most: turns that are counted, at most.
        seconds: time for each call, after which it ends; three turns are always
            counted.
        limit: seconds for all calls together, warm-ups among them, after which no
            further turn begins; but a second turn there always is, and it is counted
            then.
    """
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + limit
    for turn in range(-_WARM_UPS, most):
        is_late = time.perf_counter() > end
        if is_late and times[0]:
            break
        for call, own_times in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            if turn >= 0 or is_late:
                own_times.append(1e3 * (time.perf_counter() - begin))
        enough = sum(map(sum, times)) > 1e3 * seconds * len(calls)
        if enough and turn >= _LEAST - 1:
            break
    return times


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    """Return what nine in ten times are above, the median, and what they are below.

    Example:
        >>> spread([5, 1, 3, 4, 2, 6, 8, 7, 9, 10, 11])
        (2.0, 6, 10.0)
    """
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return tenths[0], statistics.median(times), tenths[-1]
