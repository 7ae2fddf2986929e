"""Timelines on disk: a gzipped line of JSON each, small whatever the model."""

import gzip
import io
import zlib
from collections.abc import Sequence
from pathlib import Path

from kerasmem.errors import InputError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.files.folding import folded
from kerasmem.files.run_dir import file_name
from kerasmem.records import Timeline
from kerasmem.records.regular import read_regular
from kerasmem.records.timeline import MOST_TEXT_BYTES
from kerasmem.units import format_bytes

LIMIT_BYTES = 5_000_000
_MOST_BLOCKS = 130_000
_FEWEST_BLOCKS = 100


def add_timelines(
    folder: Path, timelines: Sequence[Timeline], process: int = 0
) -> Path:
    """Write one window into a run's folder, under the next free number.

    Args:
        folder: made if it is not there.
        timelines: of one window.
        process: index of the process that trains.

    Returns:
        The path of the file.

    Raises:
        OSError: if it cannot be written.
    """
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
    """Write timelines into one file, whole or not at all.

    Where they do not fit, the smallest blocks are put together (`folded`).

    Raises:
        OutputError: if the file cannot be written, or nothing fits in `limit_bytes`.
    """
    most = min(_MOST_BLOCKS, max((len(t.blocks) for t in timelines), default=0))
    content, text_bytes = _compressed([folded(each, most) for each in timelines])
    while len(content) > limit_bytes or text_bytes > MOST_TEXT_BYTES:
        if most < _FEWEST_BLOCKS:
            raise OutputError(
                f"The timelines do not fit in the file. Received: {limit_bytes=}."
            )
        # A little less than in proportion, so that one more time mostly suffices.
        over = max(len(content) / limit_bytes, text_bytes / MOST_TEXT_BYTES)
        most = int(most * 0.9 / over)
        content, text_bytes = _compressed([folded(each, most) for each in timelines])
    with replacing(path, follow_link=False) as temporary:
        temporary.write_bytes(content)


def read_timelines(path: Path) -> list[Timeline]:
    """Return the timelines that `write_timelines` wrote.

    Raises:
        InputError: if it is damaged, or no timeline.
        OSError: if the file cannot be read, or is a link.
    """
    return timelines_in(timeline_text(path))


def timeline_text(path: Path) -> bytes:
    """Return the lines of JSON in a file of timelines.

    Raises:
        InputError: if it is damaged, or too large.
        OSError: if the file cannot be read, or is a link.
    """
    try:
        # Zeros behind the end are read as well, however many a sparse file has.
        packed = io.BytesIO(read_regular(path, MOST_TEXT_BYTES))
        with gzip.open(packed) as inflated:
            content = inflated.read(MOST_TEXT_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path.name} is damaged: {error}.") from error
    if len(content) > MOST_TEXT_BYTES:
        raise InputError(
            f"{path.name} is too large. Expected: {format_bytes(MOST_TEXT_BYTES)} of "
            "text at most."
        )
    return content


def timelines_in(text: bytes) -> list[Timeline]:
    """Return the timelines in lines of JSON.

    Raises:
        InputError: if one is damaged, or no timeline.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return [Timeline.from_json(line.decode("utf-8", "replace")) for line in lines]


def _compressed(timelines: Sequence[Timeline]) -> tuple[bytes, int]:
    """Return the bytes of a file of timelines, and how many bytes of text they are."""
    lines = "".join(f"{timeline.to_json()}\n" for timeline in timelines).encode()
    # Without the time of day in it: the same timelines are the same file.
    return gzip.compress(lines, compresslevel=6, mtime=0), len(lines)
