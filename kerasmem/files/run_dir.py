"""The directory of a run: file names, journals and timelines.

| file | content |
|---|---|
| `run.json` | one `RunInfo` |
| `memory.jsonl` | a `MemoryRecord` per line |
| `gradients.jsonl` | a `GradientRecord` per line |
| `findings.jsonl` | a `Finding` per line |
| `post_mortems.jsonl` | a `PostMortem` per line |
| `memory_plans.jsonl` | a `PlanRecord` per line |
| `timeline-0000.json.gz` | the `Timeline`s of one window, one per line |

Process 0 writes these files. Process 1 writes `memory-p1.jsonl` etc.

A timeline is a gzipped line of JSON of limited size.
"""

import gzip
import io
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from kerasmem.errors import InputError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.records import PostMortem, Timeline
from kerasmem.records.memory_plan import PlanRecord
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


def add_plan(
    log_dir: str | os.PathLike[str] | None, plan: PlanRecord, process: int = 0
) -> None:
    """Appends a memory plan to the directory of a run. `None` disables writing."""
    name = file_name("memory_plans", ".jsonl", process)
    Journal(log_dir, name).append(plan.to_json())


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


_MOST_BLOCKS = 200_000
"""Blocks of a window, so that the values are within the limit of `read_json`."""


def add_timelines(
    folder: Path, timelines: Sequence[Timeline], process: int = 0
) -> Path:
    """Writes one window of timelines under the next free number. Returns the path.

    Raises `OutputError` if the file cannot be written or would be too large to read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        path = folder / file_name(f"timeline-{number:04}", ".json.gz", process)
        if not path.exists():
            break
        number += 1
    lines = "".join(f"{timeline.to_json()}\n" for timeline in timelines).encode()
    blocks = sum(len(timeline.blocks) for timeline in timelines)
    if len(lines) > MOST_TEXT_BYTES or blocks > _MOST_BLOCKS:
        raise OutputError(
            f"The timelines are too long: {blocks:,} blocks in "
            f"{format_bytes(len(lines))}. Expected: {_MOST_BLOCKS:,} blocks and "
            f"{format_bytes(MOST_TEXT_BYTES)} at most. Next: record fewer steps."
        )
    with replacing(path, follow_link=False) as temporary:
        # Without a timestamp, the file is reproducible.
        temporary.write_bytes(gzip.compress(lines, compresslevel=6, mtime=0))
    return path


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
