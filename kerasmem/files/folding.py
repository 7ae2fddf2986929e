"""Fewer blocks that tell the same story.

The largest blocks stay as they are. Of the others, those of one layer, phase and
category that begin between the same two remaining events and end between the same two
become one block, which begins with the last and ends with the first of its own there.
So at every event of a block that stayed, and at every checkpoint in between, the blocks
in use add up to the allocator's own figure, as before; in between they may add up to
less. A small block that begins and ends between two of them is left out.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from heapq import nlargest
from itertools import accumulate

from kerasmem.records import Block, Timeline

_CHECKPOINTS = 2000


def folded(timeline: Timeline, most_blocks: int) -> Timeline:
    """Return `timeline` with some `most_blocks` blocks, or itself if it has no more.

    Args:
        timeline: the timeline.
        most_blocks: number of blocks aimed at; the large ones take half of it.
    """
    if len(timeline.blocks) <= most_blocks:
        return timeline
    large, small = _parted(timeline.blocks, most_blocks // 2)
    borders = _borders(timeline, large, min(_CHECKPOINTS, most_blocks // 8))
    merged, number = _merged(small, borders)
    return _rebuilt(timeline, large, merged, timeline.folded + number)


def _parted(blocks: tuple[Block, ...], number: int) -> tuple[list[Block], list[Block]]:
    kept = nlargest(
        number, range(len(blocks)), key=lambda index: blocks[index].given_bytes
    )
    is_large = bytearray(len(blocks))
    for index in kept:
        is_large[index] = 1
    return (
        [block for block, large in zip(blocks, is_large, strict=True) if large],
        [block for block, large in zip(blocks, is_large, strict=True) if not large],
    )


def _borders(timeline: Timeline, large: list[Block], checkpoints: int) -> list[int]:
    """Return the numbers of the events that stay or are checkpoints, ascending."""
    events = len(timeline.times_ns)
    numbers = {number for block in large for number in _events_of(block)}
    numbers.update(range(0, events, max(events // max(checkpoints, 1), 1)))
    numbers.add(events - 1)
    if timeline.peak_event is not None:
        numbers.add(timeline.peak_event)
    return sorted(numbers)


def _events_of(block: Block) -> Iterable[int]:
    return (n for n in (block.allocated_at, block.freed_at) if n is not None)


def _merged(small: list[Block], borders: list[int]) -> tuple[list[Block], int]:
    """Return the merged blocks, and how many blocks are in them or left out."""
    groups: dict[tuple, list[Block]] = defaultdict(list)
    for block in small:
        begin = _gap(block.allocated_at, borders)
        end = _gap(block.freed_at, borders)
        if begin is None or begin != end:
            what = (block.layer, block.phase, block.category)
            groups[begin, end, *what].append(block)
    merged = [_sum(group) for group in groups.values()]
    alone = sum(len(group) == 1 for group in groups.values())
    return merged, len(small) - alone


def _gap(number: int | None, borders: list[int]) -> int | None:
    # An event at a border belongs before it: at the border its bytes count.
    return None if number is None else bisect_right(borders, number - 1)


def _sum(group: list[Block]) -> Block:
    if len(group) == 1:
        return group[0]
    return replace(
        group[0],
        requested_bytes=sum(block.requested_bytes for block in group),
        given_bytes=sum(block.given_bytes for block in group),
        allocated_at=max(
            (b.allocated_at for b in group if b.allocated_at is not None), default=None
        ),
        freed_at=min(
            (b.freed_at for b in group if b.freed_at is not None), default=None
        ),
        operation="",
        shape="",
        dtype="",
    )


def _rebuilt(
    timeline: Timeline, large: list[Block], merged: list[Block], number: int
) -> Timeline:
    blocks = [*large, *merged]
    events = sorted(number for block in blocks for number in _events_of(block))
    place = {old: new for new, old in enumerate(events)}
    changes = [0] * len(events)
    for block in blocks:
        if block.allocated_at is not None:
            changes[place[block.allocated_at]] += block.given_bytes
        if block.freed_at is not None:
            changes[place[block.freed_at]] -= block.given_bytes
    return replace(
        timeline,
        times_ns=tuple(timeline.times_ns[old] for old in events),
        in_use_bytes=tuple(
            timeline.opening_bytes + change for change in accumulate(changes)
        ),
        reserved_bytes=_at(events, timeline.reserved_bytes),
        fragmentation=_at(events, timeline.fragmentation),
        blocks=tuple(_moved(block, place) for block in blocks),
        folded=number,
    )


def _at(events: list[int], series: tuple) -> tuple:
    return tuple(series[old] for old in events) if series else ()


def _moved(block: Block, place: dict[int, int]) -> Block:
    return replace(
        block,
        allocated_at=None if block.allocated_at is None else place[block.allocated_at],
        freed_at=None if block.freed_at is None else place[block.freed_at],
    )
