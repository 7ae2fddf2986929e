"""Timelines on disk: a gzipped line of JSON each, small whatever the model."""

import gzip
from collections.abc import Sequence
from pathlib import Path

from kerasmem.errors import OutputError
from kerasmem.files.atomic import replacing
from kerasmem.files.folding import folded
from kerasmem.files.run_dir import file_name
from kerasmem.records import Timeline

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
    content = _compressed([folded(timeline, most) for timeline in timelines])
    while len(content) > limit_bytes:
        if most < _FEWEST_BLOCKS:
            raise OutputError(
                f"The timelines do not fit in the file. Received: {limit_bytes=}."
            )
        # A little less than in proportion, so that one more time mostly suffices.
        most = int(most * 0.9 * limit_bytes / len(content))
        content = _compressed([folded(timeline, most) for timeline in timelines])
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_timelines(path: Path) -> list[Timeline]:
    """Return the timelines that `write_timelines` wrote.

    Raises:
        OSError: if the file cannot be read.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [Timeline.from_json(line) for line in lines if line.strip()]


def _compressed(timelines: Sequence[Timeline]) -> bytes:
    lines = "".join(f"{timeline.to_json()}\n" for timeline in timelines)
    # Without the time of day in it: the same timelines are the same file.
    return gzip.compress(lines.encode(), compresslevel=6, mtime=0)
