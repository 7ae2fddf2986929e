"""Reading back what the monitors of a run wrote, also of one that was killed."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kerasmem.errors import InputError
from kerasmem.files.run_dir import file_name, run_name
from kerasmem.files.timelines import read_timelines
from kerasmem.records import (
    Finding,
    GradientRecord,
    MemoryRecord,
    PostMortem,
    Run,
    RunInfo,
    Timeline,
)
from kerasmem.records.plain import MOST_BYTES
from kerasmem.records.regular import open_regular, read_regular
from kerasmem.units import MIB, format_bytes

_Record = TypeVar("_Record")
_MOST_BYTES, _MOST_LINES = 128 * MIB, 500_000
"""Of a file that are read: no page can show more."""


def read_run(path: str | Path) -> Run:
    """Return what the monitors of a run wrote into the folder `path`.

    A file that is missing was not written: that monitor did not run. What cannot be
    read, such as the last line of a run that was killed, is left out, and said in
    the run's notes.

    Raises:
        InputError: if there is no such folder, or nothing of a run in it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            "A run's folder is what a monitor was given as log_dir. There is no folder "
            f"here. Received: path={str(path)!r}."
        )
    notes: list[str] = []
    gradients = _records(folder, "gradients", GradientRecord.from_json, notes)
    run = Run(
        info=_info(folder, notes),
        memory=_all(_records(folder, "memory", MemoryRecord.from_json, notes)),
        gradients=next(iter(gradients.values()), ()),
        findings=_all(_records(folder, "findings", Finding.from_json, notes)),
        timelines=_timelines(folder, notes),
        post_mortems=_all(
            _records(folder, "post_mortems", PostMortem.from_json, notes)
        ),
        notes=tuple(notes),
        name=run_name(folder),
    )
    if run == Run(info=run.info, notes=run.notes, name=run.name):
        raise InputError(
            "There is nothing here that a monitor recorded. Expected: the folder that "
            "MemoryMonitor, GradientMonitor or MemoryTimeline was given as log_dir. "
            f"Received: path={str(path)!r}.{''.join(f' ({note})' for note in notes)}"
        )
    return run


def _info(folder: Path, notes: list[str]) -> RunInfo | None:
    file = folder / file_name("run", ".json")
    if not os.path.lexists(file):
        return None
    try:
        text = read_regular(file, MOST_BYTES).decode("utf-8", "replace")
        return RunInfo.from_json(text)
    except (InputError, OSError) as error:
        notes.append(_left_out(file, error))
        return None


def _records(
    folder: Path, stem: str, parse: Callable[[str], _Record], notes: list[str]
) -> dict[int, tuple[_Record, ...]]:
    """Return the records in a file of lines, by the process that wrote it."""
    found: dict[int, tuple[_Record, ...]] = {}
    for process, file in sorted(_files(folder, stem, ".jsonl")):
        try:
            parsed = [_parsed(line, parse) for line in _lines(file, notes)]
        except OSError as error:
            notes.append(_left_out(file, error))
            continue
        _note(file, parsed, notes)
        found[process] = tuple(record for record in parsed if record is not None)
    return found


def _lines(file: Path, notes: list[str]) -> Iterator[bytes]:
    """Yield the lines of a file that are not empty, as far as they can be shown."""
    left, lines = _MOST_BYTES, 0
    with open_regular(file) as content:
        while line := content.readline(min(left, MOST_BYTES)):
            left -= len(line)
            lines += 1
            if not left or lines > _MOST_LINES:
                notes.append(
                    f"Only the first {_MOST_LINES:,} lines of {file.name} were read, "
                    f"or the first {format_bytes(_MOST_BYTES)}."
                )
                return
            if line.strip():
                yield line


def _timelines(folder: Path, notes: list[str]) -> tuple[Timeline, ...]:
    """Return every window; of a later process the allocator's name tells which."""
    found: list[Timeline] = []
    for process, file in sorted(_files(folder, r"timeline-\d+", ".json.gz")):
        try:
            timelines = read_timelines(file)
        except (InputError, OSError) as error:
            notes.append(_left_out(file, error))
            continue
        owner = f" of process {process}" if process else ""
        found += [replace(t, allocator=f"{t.allocator}{owner}") for t in timelines]
    return tuple(found)


def _files(folder: Path, stem: str, suffix: str) -> Iterator[tuple[int, Path]]:
    name = re.compile(rf"{stem}(?:-p(\d+))?{re.escape(suffix)}")
    for file in folder.iterdir():
        if match := name.fullmatch(file.name):
            yield int(match[1] or 0), file


def _parsed(line: bytes, parse: Callable[[str], _Record]) -> _Record | None:
    """Return what a line holds, None if it cannot be read."""
    try:
        return parse(line.decode("utf-8", "replace"))
    except InputError:
        return None


def _left_out(file: Path, error: Exception) -> str:
    irregular = isinstance(error, OSError) and error.errno == errno.EINVAL
    why = "no regular file" if irregular else "damaged"
    return f"{file.name} is {why} and was left out."


def _note(file: Path, parsed: list[_Record | None], notes: list[str]) -> None:
    bad = [number for number, record in enumerate(parsed, 1) if record is None]
    if bad == [len(parsed)]:
        notes.append(f"The last line of {file.name} is cut off and was left out.")
    elif bad:
        notes.append(f"{len(bad)} of {len(parsed)} lines of {file.name} are damaged.")


def _all(by_process: dict[int, tuple[_Record, ...]]) -> tuple[_Record, ...]:
    return tuple(record for records in by_process.values() for record in records)
