"""Micro-batches tried for real, by the search of `find_batch_size`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kerasmem import backends
from kerasmem.backends import device_kind
from kerasmem.memory.batch_size.find import request_of_one, search_for
from kerasmem.memory.batch_size.result import Trial
from kerasmem.memory.oom.fitting import (
    Fitting,
    Room,
    most_moving_bytes,
    moving_bytes,
    stored_bytes,
)
from kerasmem.memory.oom.moment import Moment
from kerasmem.records import MemoryEstimate

_SECONDS = 60.0


@dataclass(frozen=True)
class Tried:
    """What trials said.

    Args:
        fitting: the number of micro-batches that fits, None if none did.
        failed: the largest number of them that was seen not to fit.
    """

    fitting: Fitting | None
    failed: int


def can_be_tried() -> bool:
    """Return whether a process of its own has as much memory, and keeps to a limit.

    A GPU is full while this process has it.
    """
    return device_kind() == "cpu" and backends.current().cpu_limit_bytes() is not None


def try_micro_batches(
    model: Any, moment: Moment, room: Room, estimate: Callable[[int], MemoryEstimate]
) -> Tried | None:
    """Return what trials of smaller batches said; None if none ended within a minute.

    Args:
        model: the model in training.
        moment: the step that failed.
        room: what a step may use.
        estimate: returns the estimate for so many samples at a time.

    Raises:
        ConfigError: if the variables alone are above the limit.
        ChildDiedError: if a step fails for another reason than memory.
    """
    request = request_of_one(model, None, moment.input_shape, training=moment.training)

    def most(size: int) -> int:
        found = estimate(size)
        return stored_bytes(found) + round(most_moving_bytes(found, 1.0))

    search = search_for(
        request,
        room.limit_bytes - room.other_bytes - room.accumulator_bytes,
        most,
        moment.smaller_sizes(),
        seconds=_SECONDS,
        # What is said here is of a step in this process, with its threads.
        one_thread=False,
    )
    with suppress(TimeoutError):  # what was tried until then counts
        search.run()
    if not search.trials:
        return None
    fits = [trial for trial in search.trials if trial.fits]
    fails = [trial.batch_size for trial in search.trials if not trial.fits]
    failed = -(-moment.batch_size // min(fails, default=moment.micro_batch_size))
    if not fits:
        return Tried(None, failed)
    largest = max(fits, key=lambda trial: trial.batch_size)
    fitting = _fitting(largest, moment, room, estimate(largest.batch_size))
    return Tried(fitting, failed)


def _fitting(
    trial: Trial, moment: Moment, room: Room, estimate: MemoryEstimate
) -> Fitting:
    own = trial.peak_bytes or estimate.peak_bytes
    moved = own - stored_bytes(estimate)
    return Fitting(
        micro_batches=-(-moment.batch_size // trial.batch_size),
        peak_bytes=own + room.other_bytes + room.accumulator_bytes,
        is_tried=True,
        correction=max(1.0, moved / max(moving_bytes(estimate), 1)),
    )
