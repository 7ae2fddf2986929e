"""Timing of calls in turns, for machines with varying speed."""

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
    """Time each call several times, in milliseconds.

    The calls take turns, so that changes in machine speed affect all of them. The first
    two turns are warm-up.

    Args:
        calls: Functions to time.
        most: Maximum number of counted turns. Defaults to 20.
        seconds: Time per call after which timing ends, with at least three counted
            turns. Defaults to 3.
        limit: Seconds for all calls, including warm-up, after which no turn starts. A
            second turn always runs and then counts. Defaults to no limit.
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
    """Return the 10th percentile, the median and the 90th percentile.

    Example:
        >>> spread([5, 1, 3, 4, 2, 6, 8, 7, 9, 10, 11])
        (2.0, 6, 10.0)
    """
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return tenths[0], statistics.median(times), tenths[-1]
