"""Positions of a run's readings on the axis of epochs."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from kerasmem.records import MemoryRecord, Run

IN_FIT = ("train", "validation")


def continued(epochs: Iterable[int]) -> list[int]:
    """Renumbers epochs so that a second fit continues after the first.

    Example:
        >>> continued([0, 1, 2, 0, 1])
        [0, 1, 2, 3, 4]
    """
    numbers: list[int] = []
    offset = 0
    for epoch in epochs:
        if numbers and epoch + offset <= numbers[-1]:
            offset = numbers[-1] + 1 - epoch
        numbers.append(epoch + offset)
    return numbers


def numbered(records: Iterable[MemoryRecord]) -> Iterator[tuple[int, MemoryRecord]]:
    """Yields every reading with its continued epoch number, from 1.

    Readings must be in order per process.
    """
    counts: dict[int, tuple[int, int]] = {}
    for record in records:
        # Offset of the epoch numbers in this fit, and number of completed epochs.
        offset, epoch_count = counts.get(record.process, (0, 0))
        is_earlier = record.phase == "train" and record.epoch < epoch_count
        if record.phase in IN_FIT and (is_earlier or record.epoch < epoch_count - 1):
            offset, epoch_count = offset + epoch_count - record.epoch, 0
        yield offset + record.epoch + 1, record
        if record.phase == "train" and record.batch is None:
            epoch_count = record.epoch + 1
        counts[record.process] = offset, epoch_count


def placed(records: Sequence[MemoryRecord]) -> Iterator[tuple[float, MemoryRecord]]:
    """Yields every reading of one process within a fit with its position.

    Epoch 1 ends at 1. A batch is placed within its epoch in proportion to its index.
    """
    batches = 1 + max((r.batch for r in records if r.batch is not None), default=0)
    for number, record in numbered(records):
        if record.phase in IN_FIT:
            inside = 1.0 if record.batch is None else (record.batch + 1) / batches
            yield number - 1 + inside, record


def later_fits(run: Run) -> list[int]:
    """Returns the numbers, from 1, of the first epochs of all fits after the first.

    A fit that continues another one with `initial_epoch` is not counted separately.
    """
    numbers = [
        (number, record.epoch)
        for number, record in numbered(run.memory)
        if record.process == 0 and record.phase in IN_FIT
    ]
    if run.gradients:
        own = [record.epoch for record in run.gradients]
        numbers = [(n + 1, e) for n, e in zip(continued(own), own, strict=True)]
    offsets = [number - epoch for number, epoch in numbers]
    pairs = zip(pairwise(offsets), numbers[1:], strict=True)
    return [number for (before, now), (number, _) in pairs if now != before]
