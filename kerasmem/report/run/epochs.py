"""Where each reading of a run lies on the axis of its epochs."""

from collections.abc import Iterable, Iterator, Sequence

from kerasmem.records import MemoryRecord

IN_FIT = ("train", "validation")


def continued(epochs: Iterable[int]) -> list[int]:
    """Return epochs that always rise: a second fit goes on where the first ended.

    Example:
        >>> continued([0, 1, 2, 0, 1])
        [0, 1, 2, 3, 4]
    """
    found: list[int] = []
    offset = 0
    for epoch in epochs:
        if found and epoch + offset <= found[-1]:
            offset = found[-1] + 1 - epoch
        found.append(epoch + offset)
    return found


def placed(records: Sequence[MemoryRecord]) -> Iterator[tuple[float, MemoryRecord]]:
    """Yield every reading taken inside of a fit with its place, epoch 1 ending at 1.

    A batch lies inside of its epoch, by its share of the epoch's batches.

    Args:
        records: what one process recorded, in order.
    """
    batches = 1 + max((r.batch for r in records if r.batch is not None), default=0)
    offset = last = 0
    for record in records:
        if record.phase not in IN_FIT:
            continue
        ended = record.phase == "train" and record.epoch < last
        if ended or record.epoch < last - 1:
            offset, last = offset + last, 0
        inside = 1.0 if record.batch is None else (record.batch + 1) / batches
        yield offset + record.epoch + inside, record
        if record.phase == "train" and record.batch is None:
            last = record.epoch + 1
