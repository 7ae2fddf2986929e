"""Where each reading of a run lies on the axis of its epochs."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from kerasmem.records import MemoryRecord, Run

IN_FIT = ("train", "validation")


def continued(epochs: Iterable[int]) -> list[int]:
    """Return epochs that always rise: a second fit goes on where the first ended.

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
    """Yield every reading with the number of its epoch, from 1, as `continued` counts.

    Args:
        records: of any processes, those of each in the order in which it took them.
    """
    counts: dict[int, tuple[int, int]] = {}
    for record in records:
        # How far the numbers are ahead of the fit's own, and how many epochs ended.
        offset, epoch_count = counts.get(record.process, (0, 0))
        is_earlier = record.phase == "train" and record.epoch < epoch_count
        if record.phase in IN_FIT and (is_earlier or record.epoch < epoch_count - 1):
            offset, epoch_count = offset + epoch_count - record.epoch, 0
        yield offset + record.epoch + 1, record
        if record.phase == "train" and record.batch is None:
            epoch_count = record.epoch + 1
        counts[record.process] = offset, epoch_count


def placed(records: Sequence[MemoryRecord]) -> Iterator[tuple[float, MemoryRecord]]:
    """Yield every reading taken inside of a fit with its place, epoch 1 ending at 1.

    A batch lies inside of its epoch, by its share of the epoch's batches.

    Args:
        records: what one process recorded, in order.
    """
    batches = 1 + max((r.batch for r in records if r.batch is not None), default=0)
    for number, record in numbered(records):
        if record.phase in IN_FIT:
            inside = 1.0 if record.batch is None else (record.batch + 1) / batches
            yield number - 1 + inside, record


def later_fits(run: Run) -> list[int]:
    """Return the numbers, from 1, of the epochs with which a fit after the first began.

    A fit with an `initial_epoch` that goes on where another ended is one with it.
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
