"""The directory of a run: file names, journals and timelines.

| file | content |
|---|---|
| `run.json` | one `RunInfo` |
| `memory.jsonl` | a `MemoryRecord` per line |
| `gradients.jsonl` | a `GradientRecord` per line |
| `findings.jsonl` | a `Finding` per line |
| `post_mortems.jsonl` | a `PostMortem` per line |
| `timeline-0000.json.gz` | the `Timeline`s of one window, one per line |

Process 0 writes these files. Process 1 writes `memory-p1.jsonl` etc.

A timeline is a gzipped line of JSON of limited size. The largest blocks are kept. Small
blocks of the same layer, phase and category are merged if no kept event separates their
begins or their ends. A merged block begins with the last and ends with the first of its
blocks. At every kept event and checkpoint, the blocks add up to the bytes in use. In
between, the sum may be smaller. A small block that begins and ends between two kept
events is omitted.
"""

import gzip
import io
import os
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import accumulate
from pathlib import Path

from kerasmem.errors import InputError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.records import Block, PostMortem, Timeline
from kerasmem.records.regular import open_regular, read_regular
from kerasmem.records.timeline import MOST_TEXT_BYTES
from kerasmem.units import format_bytes


class Journal:
    """Appends lines to the file `log_dir/name`. Links are not followed.

    The directory is created with the first line. `None` disables writing.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None, name: str) -> None:
        self._path = None if log_dir is None else Path(log_dir) / name
        self._may_be_cut_off = True

    def append(self, line: str) -> None:
        """Writes one line to the file."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        begin = "\n" if self._may_be_cut_off and _is_cut_off(self._path) else ""
        self._may_be_cut_off = True
        with open_regular(self._path, "ab") as file:
            file.write(f"{begin}{line}\n".encode())
        self._may_be_cut_off = False


def _is_cut_off(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def add_post_mortem(
    log_dir: str | os.PathLike[str] | None, post_mortem: PostMortem
) -> None:
    """Appends a post-mortem to the directory of a run. `None` disables writing."""
    name = file_name("post_mortems", ".jsonl", post_mortem.process)
    Journal(log_dir, name).append(post_mortem.to_json())


def file_name(stem: str, suffix: str, process: int = 0) -> str:
    """Returns the name of a file in the directory of a run.

    Example:
        >>> file_name("memory", ".jsonl"), file_name("memory", ".jsonl", process=1)
        ('memory.jsonl', 'memory-p1.jsonl')
    """
    return f"{stem}-p{process}{suffix}" if process else f"{stem}{suffix}"


def run_name(folder: Path) -> str:
    """Returns the name of a run's directory. Undecodable bytes become `?`."""
    return folder.resolve().name.encode(errors="replace").decode()


_CHECKPOINTS = 2000


def folded(timeline: Timeline, most_blocks: int) -> Timeline:
    """Returns a timeline with about `most_blocks` blocks, half of them the largest."""
    if len(timeline.blocks) <= most_blocks:
        return timeline
    large, small = _parted(timeline.blocks, most_blocks // 2)
    borders = _borders(timeline, large, min(_CHECKPOINTS, most_blocks // 8))
    sums, number = _merged(small, borders)
    return _rebuilt(timeline, large, sums, timeline.folded + number)


def _parted(blocks: tuple[Block, ...], number: int) -> tuple[list[Block], list[Block]]:
    largest = set(nlargest(number, range(len(blocks)), lambda n: blocks[n].given_bytes))
    return (
        [block for n, block in enumerate(blocks) if n in largest],
        [block for n, block in enumerate(blocks) if n not in largest],
    )


def _borders(timeline: Timeline, large: list[Block], checkpoints: int) -> list[int]:
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
    groups: dict[tuple, list[Block]] = defaultdict(list)
    for block in small:
        begin = _gap(block.allocated_at, borders)
        end = _gap(block.freed_at, borders)
        if begin is None or begin != end:
            what = (block.layer, block.phase, block.category)
            groups[begin, end, *what].append(block)
    sums = [_sum(group) for group in groups.values()]
    alone = sum(len(group) == 1 for group in groups.values())
    return sums, len(small) - alone


def _gap(number: int | None, borders: list[int]) -> int | None:
    # An event at a border counts as before the border, so that its bytes are included.
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


LIMIT_BYTES = 5_000_000
_MOST_BLOCKS = 130_000
_FEWEST_BLOCKS = 100


def add_timelines(
    folder: Path, timelines: Sequence[Timeline], process: int = 0
) -> Path:
    """Writes one window of timelines under the next free number. Returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        path = folder / file_name(f"timeline-{number:04}", ".json.gz", process)
        if not path.exists():
            break
        number += 1
    write_timelines(path, timelines)
    return path


def write_timelines(
    path: Path, timelines: Sequence[Timeline], limit_bytes: int = LIMIT_BYTES
) -> None:
    """Writes timelines atomically to one file.

    The smallest blocks are merged (`folded`) until the file is small enough. Raises
    `OutputError` if the file cannot be written or `limit_bytes` is too small.
    """
    most = min(_MOST_BLOCKS, max((len(t.blocks) for t in timelines), default=0))
    content, text_bytes = _compressed([folded(each, most) for each in timelines])
    while len(content) > limit_bytes or text_bytes > MOST_TEXT_BYTES:
        if most < _FEWEST_BLOCKS:
            raise OutputError(
                f"The timelines do not fit in the file. Received: {limit_bytes=}."
            )
        # Slightly below proportional, so that one more iteration usually suffices.
        over = max(len(content) / limit_bytes, text_bytes / MOST_TEXT_BYTES)
        most = int(most * 0.9 / over)
        content, text_bytes = _compressed([folded(each, most) for each in timelines])
    with replacing(path, follow_link=False) as temporary:
        temporary.write_bytes(content)


def timeline_text(path: Path) -> bytes:
    """Returns the JSON lines in a file of timelines.

    Raises `InputError` if the file is damaged or too large.
    """
    try:
        # gzip also reads trailing zeros, and a sparse file can have any number.
        stream = io.BytesIO(read_regular(path, MOST_TEXT_BYTES))
        with gzip.open(stream) as reader:
            content = reader.read(MOST_TEXT_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path.name} is damaged: {error}.") from error
    if len(content) > MOST_TEXT_BYTES:
        raise InputError(
            f"{path.name} is too large. Expected: {format_bytes(MOST_TEXT_BYTES)} of "
            "text at most."
        )
    return content


def timelines_in(text: bytes) -> list[Timeline]:
    """Parses timelines from JSON lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [Timeline.from_json(line.decode("utf-8", "replace")) for line in lines]


def _compressed(timelines: Sequence[Timeline]) -> tuple[bytes, int]:
    lines = "".join(f"{timeline.to_json()}\n" for timeline in timelines).encode()
    # Without a timestamp, the file is reproducible.
    return gzip.compress(lines, compresslevel=6, mtime=0), len(lines)
