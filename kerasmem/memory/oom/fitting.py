"""How many micro-batches would fit: estimated, corrected by what has failed."""

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
        batch_size: samples of the effective batch, which makes one update; 0 if
            unknown.
        micro_batches: into how many that was split, from 1.
        epoch: index of the epoch, from 0; None if unknown.
        step: number of the step, from 0 over the whole fit; None if unknown.
        training: False if it was no training step but one of `evaluate` or `predict`.
        limit_bytes: most bytes to use of the device; None for what it has.
        accumulates: whether gradients of several micro-batches are summed up in
            variables of their own, which take the bytes of the trained ones.
        input_shape: as in `estimate_memory`, for a model that leaves lengths open.
        is_freed: whether the tensors of the failed step are gone; otherwise what is in
            use now says nothing of what stays in use.
        other_bytes: bytes in use beside the variables between steps; None to take what
            is in use now for it, if the failed step is gone.
        timelines: a window of steps that ends with this one, where there is one.
        process: index of the process.
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
        """Samples that went through the model at a time, at most."""
        return -(-self.batch_size // self.micro_batches)


def samples_per_batch(x: Tensor, batch_size: int | None) -> int:
    """Return the samples of a full batch, 0 where they cannot be told beforehand.

    Args:
        x: what `fit` was given: arrays, or what makes batches. A dataset that can be
            started again is asked for its first batch; a generator is left alone.
        batch_size: the argument of `fit`.
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
    """What a step may use.

    Args:
        limit_bytes: most bytes to be had of the device.
        other_bytes: bytes in use beside the model's and the optimizer's variables.
        accumulator_bytes: bytes of the variables in which the gradients of several
            micro-batches are summed up.
    """

    limit_bytes: int
    other_bytes: int = 0
    accumulator_bytes: int = 0

    def left_bytes(self, estimate: MemoryEstimate) -> int:
        """Return what the variables of a step leave to the rest of it."""
        return self.limit_bytes - stored_bytes(estimate) - self.other_bytes

    def peak_bytes(self, estimate: MemoryEstimate, correction: float) -> int:
        """Return the peak to expect, with what is in use beside the step.

        Args:
            estimate: of the step.
            correction: by how much more than estimated it moves, 1 for not at all.
        """
        moving = round(correction * moving_bytes(estimate))
        return stored_bytes(estimate) + moving + self.other_bytes

    def holds(self, estimate: MemoryEstimate, correction: float) -> bool:
        """Return whether a step fits: the upper end of its estimate has to."""
        most = most_moving_bytes(estimate, correction)
        return most <= USABLE * self.left_bytes(estimate)


def stored_bytes(estimate: MemoryEstimate) -> int:
    """Return the bytes of the model's and the optimizer's variables."""
    return sum(p.nbytes for p in estimate.parts if p.category in _STORED)


def moving_bytes(estimate: MemoryEstimate) -> int:
    """Return the bytes at the peak that are there only during a step."""
    return estimate.peak_bytes - stored_bytes(estimate)


def most_moving_bytes(estimate: MemoryEstimate, correction: float) -> float:
    """Return the most of them: by the upper end, or as corrected."""
    upper = estimate.high_bytes - stored_bytes(estimate)
    return max(upper, correction * moving_bytes(estimate))


@dataclass(frozen=True)
class Fitting:
    """A number of micro-batches that fits.

    Args:
        micro_batches: the number.
        peak_bytes: the peak with it, and with what is in use beside it.
    """

    micro_batches: int
    peak_bytes: int


def fewest_micro_batches(
    estimate: Callable[[int], MemoryEstimate],
    room: Room,
    batch_size: int,
    failed: int = 0,
) -> Fitting | None:
    """Return the fewest micro-batches that fit, None if single samples do not.

    A step fits if the upper end of its estimate does. What has failed needed more than
    there is: where the estimate says less, it is corrected in proportion.

    Args:
        estimate: returns the estimate for so many samples at a time.
        room: what a step may use.
        batch_size: samples of the effective batch.
        failed: the number of micro-batches with which memory ran out; 0 if it did not.
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
    """Return by how much more than estimated a step moves, from 1, given one failed."""
    return max(1.0, room.left_bytes(failed) / max(moving_bytes(failed), 1))


def _fewest_fitting(
    spare: Callable[[int], float], batch_size: int, failing: int
) -> int:
    """Return the fewest parts of a batch that fit, to a sixteenth; single samples do.

    The need grows in a straight line with the samples, nearly: so the line through a
    size that fits and one that does not is followed to where nothing is spare, and
    after a few looks the middle. Each look is an analytic estimate.
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
