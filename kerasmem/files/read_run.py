"""Reading back what the monitors of a run wrote, also of one that was killed."""

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kerasmem.errors import InputError
from kerasmem.files.run_dir import file_name
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

_Record = TypeVar("_Record")
# What a line raises that was cut off, or that another version of kerasmem wrote.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)


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
        name=folder.resolve().name,
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
    if not file.exists():
        return None
    found = _parse([file.read_text("utf-8", "replace")], RunInfo.from_json)
    _note(file, found, notes)
    return found[0]


def _records(
    folder: Path, stem: str, parse: Callable[[str], _Record], notes: list[str]
) -> dict[int, tuple[_Record, ...]]:
    """Return the records in a file of lines, by the process that wrote it."""
    found: dict[int, tuple[_Record, ...]] = {}
    for process, file in sorted(_files(folder, stem, ".jsonl")):
        lines = file.read_text("utf-8", "replace").splitlines()
        parsed = _parse([line for line in lines if line.strip()], parse)
        _note(file, parsed, notes)
        found[process] = tuple(record for record in parsed if record is not None)
    return found


def _timelines(folder: Path, notes: list[str]) -> tuple[Timeline, ...]:
    """Return every window; of a later process the allocator's name tells which."""
    found: list[Timeline] = []
    for process, file in sorted(_files(folder, r"timeline-\d+", ".json.gz")):
        try:
            timelines = read_timelines(file)
        except (*_UNREADABLE, OSError, EOFError, zlib.error):
            notes.append(f"{file.name} is damaged and was left out.")
            continue
        owner = f" of process {process}" if process else ""
        found += [replace(t, allocator=f"{t.allocator}{owner}") for t in timelines]
    return tuple(found)


def _files(folder: Path, stem: str, suffix: str) -> Iterator[tuple[int, Path]]:
    name = re.compile(rf"{stem}(?:-p(\d+))?{re.escape(suffix)}")
    for file in folder.iterdir():
        if match := name.fullmatch(file.name):
            yield int(match[1] or 0), file


def _parse(lines: list[str], parse: Callable[[str], _Record]) -> list[_Record | None]:
    """Return what the lines hold, None for one that cannot be read."""
    found: list[_Record | None] = []
    for line in lines:
        try:
            found.append(parse(line))
        except _UNREADABLE:
            found.append(None)
    return found


def _note(file: Path, parsed: list[_Record | None], notes: list[str]) -> None:
    bad = [number for number, record in enumerate(parsed, 1) if record is None]
    if bad == [len(parsed)]:
        notes.append(f"The last line of {file.name} is cut off and was left out.")
    elif bad:
        notes.append(f"{len(bad)} of {len(parsed)} lines of {file.name} are damaged.")


def _all(by_process: dict[int, tuple[_Record, ...]]) -> tuple[_Record, ...]:
    return tuple(record for records in by_process.values() for record in records)
