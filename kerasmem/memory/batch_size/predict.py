"""The estimated peak by batch size."""

import functools
import importlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import keras

from kerasmem.memory.batch_size.limit import ONE_THREAD
from kerasmem.memory.estimate.child import job_of, request_of
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.xla.here import estimate_here
from kerasmem.memory.measure import COUNTING_ALLOCATOR
from kerasmem.memory.measure.batch import with_batch_size
from kerasmem.processes import ON_THE_CPU, run_in_child

_SMALL = (8, 16)


def predictor(
    request: Request, estimate: Callable[[Request], int], largest: int
) -> Callable[[int], int]:
    """Return a function from a batch size to its estimated peak in bytes; it grows.

    Args:
        request: the question, for any batch size.
        estimate: the method to use for a GPU.
        largest: the largest batch size that will be asked for.
    """
    if request.device == "gpu":
        return functools.cache(lambda size: estimate(with_batch_size(request, size)))
    # Two at least: a line goes through them.
    sizes = [1 << power for power in range(max(largest - 1, 1).bit_length() + 1)]
    answered = run_in_child(
        f"{__name__}:answer",
        {**job_of(request), "sizes": sizes},
        backend=request.backend,
        environment={**ON_THE_CPU, **COUNTING_ALLOCATOR, **ONE_THREAD},
    )
    # What ran first differs from step to step: a smaller batch may have been seen at a
    # higher peak, and so a larger one can reach it.
    peaks = list(accumulate(answered["peaks"], max))
    return functools.partial(_between, sizes, peaks)


def answer(job: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the peaks on this machine's CPU; runs in the child."""
    request, sizes = request_of(job), job["sizes"]
    if keras.backend.backend() == "jax":
        return {"peaks": _planned(request, sizes)}
    name = f"kerasmem.memory.measure.on_{keras.backend.backend()}"
    return {"peaks": importlib.import_module(name).peaks_at(request, sizes)}


def _planned(request: Request, sizes: Sequence[int]) -> list[int]:
    """Return the peaks that XLA plans, on the line through two small batches."""
    low, high = (
        estimate_here(with_batch_size(request, size)).peak_bytes for size in _SMALL
    )
    slope = (high - low) / (_SMALL[1] - _SMALL[0])
    return [round(high + slope * (size - _SMALL[1])) for size in sizes]


def _between(sizes: Sequence[int], peaks: Sequence[int], batch_size: int) -> int:
    """Return the peak at a batch size, on the line through its neighbors."""
    place = min(max(bisect_right(sizes, batch_size), 1), len(sizes) - 1)
    low, high = sizes[place - 1], sizes[place]
    slope = (peaks[place] - peaks[place - 1]) / (high - low)
    return round(peaks[place - 1] + slope * (batch_size - low))
