"""Estimated number of micro-batches that fit, corrected by failed steps."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.files.data.forms import is_array_data
from kerasmem.memory.batch_size.trial import USABLE
from kerasmem.records import MemoryEstimate, Timeline
from kerasmem.types import Tensor, Tensors

_STORED = ("parameter", "optimizer_state")
_LOOKS_BY_LINE = 4
_KERAS_DEFAULT = 32


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """The step in which memory ran out.

    Args:
        batch_size: Samples per update, 0 if unknown.
        micro_batches: Number of micro-batches per update, at least 1.
        epoch: Index of the epoch, or None.
        step: Index of the step over the whole fit, or None.
        training: Boolean. False for a step of `evaluate` or `predict`.
        limit_bytes: Maximum bytes to use of the device. None for all.
        accumulates: Boolean. Whether gradients of micro-batches are accumulated in
            separate variables.
        input_shape: Input shape, as for `estimate_memory`.
        is_freed: Boolean. Whether the tensors of the failed step are freed. If not, the
            current use is not the use between steps.
        other_bytes: Bytes in use between steps other than variables. None to compute
            the value from the current use if `is_freed`.
        timelines: Timelines of steps up to this one.
        process: Index of the process.
    """

    batch_size: int
    micro_batches: int = 1
    epoch: int | None = None
    step: int | None = None
    training: bool = True
    limit_bytes: int | None = None
    accumulates: bool = True
    input_shape: Any | None = None
    is_freed: bool = True
    other_bytes: int | None = None
    timelines: Sequence[Timeline] = ()
    process: int = 0

    @property
    def micro_batch_size(self) -> int:
        """Maximum number of samples per forward pass."""
        return -(-self.batch_size // self.micro_batches)


def samples_per_batch(x: Tensor, batch_size: int | None) -> int:
    """Return the number of samples of a full batch, 0 if unknown.

    The first batch of a dataset is read; a generator is not.
    """
    if batch_size is not None:
        return batch_size
    if x is None or is_array_data(x):
        return _KERAS_DEFAULT
    if isinstance(getattr(x, "batch_size", None), int):
        return x.batch_size
    if isinstance(x, keras.utils.PyDataset):
        return _samples(x[0])
    if iter(x) is x:
        return 0
    return next((_samples(batch) for batch in itertools.islice(x, 1)), 0)


def _samples(batch: Tensors) -> int:
    leaves = [leaf for leaf in keras.tree.flatten(batch) if hasattr(leaf, "shape")]
    return int(leaves[0].shape[0]) if leaves and len(leaves[0].shape) else 0


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory available to a step, and the bytes of gradient accumulators."""

    limit_bytes: int
    other_bytes: int = 0
    accumulator_bytes: int = 0

    def left_bytes(self, estimate: MemoryEstimate) -> int:
        """Return the memory that is left after the variables."""
        return self.limit_bytes - stored_bytes(estimate) - self.other_bytes

    def peak_bytes(self, estimate: MemoryEstimate, correction: float) -> int:
        """Return the expected peak of a step, including other memory in use.

        `correction` is a factor for the bytes that exist only during the step.
        """
        moving = round(correction * moving_bytes(estimate))
        return stored_bytes(estimate) + moving + self.other_bytes

    def holds(self, estimate: MemoryEstimate, correction: float) -> bool:
        """Return whether the upper bound of the estimate of a step fits."""
        most = most_moving_bytes(estimate, correction)
        return most <= USABLE * self.left_bytes(estimate)


def stored_bytes(estimate: MemoryEstimate) -> int:
    """Return the bytes of the variables of model and optimizer."""
    return sum(p.nbytes for p in estimate.parts if p.category in _STORED)


def moving_bytes(estimate: MemoryEstimate) -> int:
    """Return the bytes at the peak that exist only during a step."""
    return estimate.peak_bytes - stored_bytes(estimate)


def most_moving_bytes(estimate: MemoryEstimate, correction: float) -> float:
    """Return the upper bound of `moving_bytes`, at least the corrected estimate."""
    upper = estimate.high_bytes - stored_bytes(estimate)
    return max(upper, correction * moving_bytes(estimate))


@dataclass(frozen=True)
class Fitting:
    """A number of micro-batches that fits, and the expected peak."""

    micro_batches: int
    peak_bytes: int


def fewest_micro_batches(
    estimate: Callable[[int], MemoryEstimate],
    room: Room,
    batch_size: int,
    failed: int = 0,
) -> Fitting | None:
    """Return the smallest number of micro-batches that fits, or None.

    A step fits if the upper bound of its estimate fits. If `failed` micro-batches ran
    out of memory, a lower estimate is scaled up.
    """
    estimate = functools.cache(estimate)
    largest = estimate(-(-batch_size // max(failed, 1)))
    usable = USABLE * room.left_bytes(largest)
    correction = correction_by_failure(largest, room) if failed else 1.0
    sums = room.accumulator_bytes

    def spare(size: int) -> float:
        return usable - sums - most_moving_bytes(estimate(size), correction)

    if not failed and spare(batch_size) + sums >= 0:
        return Fitting(1, room.peak_bytes(largest, correction))
    if failed >= batch_size or spare(1) < 0:
        return None
    count = _fewest_fitting(spare, batch_size, max(failed, 1))
    size = -(-batch_size // count)
    return Fitting(count, room.peak_bytes(estimate(size), correction) + sums)


def correction_by_failure(failed: MemoryEstimate, room: Room) -> float:
    """Return the correction factor from a failed step, at least 1."""
    return max(1.0, room.left_bytes(failed) / max(moving_bytes(failed), 1))


def _fewest_fitting(
    spare: Callable[[int], float], batch_size: int, failing: int
) -> int:
    """Return the fewest fitting parts, to within 1/16. Single samples must fit.

    Memory is almost linear in the number of samples. The search interpolates a few
    times, then bisects. Each evaluation is an analytic estimate.
    """
    fitting, looks = batch_size, 0
    while fitting - failing > max(1, failing // 16):
        looks += 1
        small, large = -(-batch_size // fitting), -(-batch_size // failing)
        size = (small + large) // 2
        if looks <= _LOOKS_BY_LINE:
            size = _crossing(spare, small, large)
        count = -(-batch_size // max(size, 1))
        count = min(max(count, failing + 1), fitting - 1)
        if spare(-(-batch_size // count)) >= 0:
            fitting = count
        else:
            failing = count
    return fitting


def _crossing(spare: Callable[[int], float], low: int, high: int) -> int:
    at_low, at_high = spare(low), spare(high)
    if at_high >= at_low:
        return high
    return low + int(at_low * (high - low) / (at_low - at_high))
