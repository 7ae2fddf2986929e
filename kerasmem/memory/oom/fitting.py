"""How many micro-batches would fit: estimated, and corrected by what has failed."""

from collections.abc import Callable
from dataclasses import dataclass

from kerasmem.records import MemoryEstimate

_USABLE = 0.96
"""Of what the variables leave: nearer to the limit chance decides."""
_STORED = ("parameter", "optimizer_state")
_LOOKS_BY_LINE = 4


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


@dataclass(frozen=True)
class Fitting:
    """A number of micro-batches that is estimated to fit, and the peak with it."""

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
    need = _Need(estimate, room, batch_size, failed)
    if not failed and need.fits(batch_size):
        return Fitting(1, need.peak(batch_size))
    if failed >= batch_size or not need.fits(1):
        return None
    count = -(-batch_size // _largest_fitting(need, -(-batch_size // max(failed, 1))))
    return Fitting(count, need.peak(-(-batch_size // count)))


def _largest_fitting(need: "_Need", failing: int) -> int:
    """Return the most samples that fit, to a sixteenth; a single one does.

    The need grows in a straight line with the samples, nearly: so the line through what
    fits and what does not says where to look, and where it misleads, the middle.
    """
    fitting, looks = 1, 0
    while failing - fitting > max(1, fitting // 16):
        looks += 1
        by_line = looks <= _LOOKS_BY_LINE
        guess = need.crossing(fitting, failing) if by_line else (fitting + failing) // 2
        size = min(max(guess, fitting + 1), failing - 1)
        fitting, failing = (size, failing) if need.fits(size) else (fitting, size)
    return fitting


class _Need:
    """What a step needs with so many samples at a time, from few estimates."""

    def __init__(
        self,
        estimate: Callable[[int], MemoryEstimate],
        room: Room,
        batch_size: int,
        failed: int,
    ) -> None:
        self._estimate = estimate
        self._room = room
        self._batch_size = batch_size
        self._known: dict[int, MemoryEstimate] = {}
        largest = -(-batch_size // max(failed, 1))
        parts = self._get(largest).parts
        self._stored = sum(p.nbytes for p in parts if p.category in _STORED)
        self._left = room.limit_bytes - self._stored - room.other_bytes
        seen = self._left / max(self._moving(largest), 1) if failed else 0.0
        self._correction = max(1.0, seen)

    def fits(self, size: int) -> bool:
        """Return whether a step with `size` samples at a time fits."""
        return self._most(size) + self._sums(size) <= _USABLE * self._left

    def crossing(self, low: int, high: int) -> int:
        """Return where the line through two sizes meets what can be used."""
        usable = _USABLE * self._left - self._room.accumulator_bytes
        at_low, at_high = self._most(low), self._most(high)
        if at_high <= at_low:
            return high
        return low + int((usable - at_low) * (high - low) / (at_high - at_low))

    def peak(self, size: int) -> int:
        """Return the peak to expect, with what is in use beside it."""
        moving = self._correction * self._moving(size)
        beside = self._room.other_bytes + self._sums(size)
        return self._stored + round(moving) + beside

    def _sums(self, size: int) -> int:
        return self._room.accumulator_bytes if size < self._batch_size else 0

    def _most(self, size: int) -> float:
        upper = self._get(size).high_bytes - self._stored
        return max(upper, self._correction * self._moving(size))

    def _moving(self, size: int) -> int:
        """Return the bytes at the peak that are there only during a step."""
        return self._get(size).peak_bytes - self._stored

    def _get(self, size: int) -> MemoryEstimate:
        if size not in self._known:
            self._known[size] = self._estimate(size)
        return self._known[size]
