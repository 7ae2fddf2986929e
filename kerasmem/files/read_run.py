"""Reads the records of a run, including incomplete records of a killed run."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from kerasmem.errors import InputError
from kerasmem.files.run_dir import file_name, run_name, timeline_text, timelines_in
from kerasmem.records import (
    Finding,
    GradientRecord,
    MemoryRecord,
    PostMortem,
    Run,
    RunInfo,
    Timeline,
)
from kerasmem.records.memory_plan import PlanRecord
from kerasmem.records.plain import MOST_BYTES
from kerasmem.records.regular import open_regular, read_regular
from kerasmem.units import MIB, format_bytes

_Record = TypeVar("_Record")
_MOST_BYTES, _MOST_LINES = 128 * MIB, 500_000
"""Maximum size and number of lines read from a directory. Pages cannot show more, and
records take three times the memory. Small files are read first: findings, then
post-mortems."""
_NAMES = 3
_BYTES_A_VALUE = 12
_LEAST_OF_A_WINDOW = MIB
"""Size charged for a damaged file, equivalent to the time for detecting the damage."""


def read_run(path: str | Path) -> Run:
    """Returns the records in the directory of a run.

    Missing files are skipped: their monitor did not run. Unreadable parts, such as the
    last line of a killed run, are omitted and reported in the notes of the run.

    Raises `InputError` if the directory is missing or has no records.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(
            "There is no folder here. Expected: the log_dir of a monitor. Received: "
            f"path={str(path)!r}."
        )
    run = _read(folder)
    notes = "".join(f" ({note})" for note in run.notes)
    if run == Run(info=run.info, notes=run.notes, name=run.name):
        raise InputError(
            "The folder contains no records of a monitor. Expected: the log_dir of a "
            "MemoryMonitor, GradientMonitor or MemoryTimeline. "
            f"Received: path={str(path)!r}.{notes}"
        )
    return run


@dataclass
class _FolderBudget:
    """Remaining bytes and lines to read, and names of truncated files."""

    nbytes: int
    lines: int
    left_out: list[str] = field(default_factory=list)

    def allows(self, name: str, nbytes: int, lines: int = 0) -> bool:
        """Subtracts a read and returns whether it is within the limits."""
        self.nbytes -= nbytes
        self.lines -= lines
        if min(self.nbytes, self.lines) >= 0:
            return True
        self.left_out.append(name)
        return False


def _read(folder: Path) -> Run:
    notes: list[str] = []
    budget = _FolderBudget(_MOST_BYTES, _MOST_LINES)

    def records(
        stem: str, parse: Callable[[str], _Record]
    ) -> dict[int, tuple[_Record, ...]]:
        return _records(folder, stem, parse, notes, budget)

    findings = _all(records("findings", Finding.from_json))
    post_mortems = _all(records("post_mortems", PostMortem.from_json))
    plans = _all(records("memory_plans", PlanRecord.from_json))
    gradients = records("gradients", GradientRecord.from_json)
    run = Run(
        info=_info(folder, notes),
        memory=_all(records("memory", MemoryRecord.from_json)),
        gradients=next(iter(gradients.values()), ()),
        findings=findings,
        timelines=_timelines(folder, notes, budget),
        post_mortems=post_mortems,
        plans=plans,
        name=run_name(folder),
    )
    if budget.left_out:
        names = ", ".join(budget.left_out[:_NAMES])
        more = len(budget.left_out) - _NAMES
        notes.append(
            f"A run is read up to {format_bytes(_MOST_BYTES)} of text and "
            f"{_MOST_LINES:,} lines. Later records were left out, in {names}"
            f"{f' and {more} more files' if more > 0 else ''}."
        )
    return replace(run, notes=tuple(notes))


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
    folder: Path,
    stem: str,
    parse: Callable[[str], _Record],
    notes: list[str],
    budget: _FolderBudget,
) -> dict[int, tuple[_Record, ...]]:
    by_process: dict[int, tuple[_Record, ...]] = {}
    for process, file in sorted(_files(folder, stem, ".jsonl")):
        try:
            records = [_parsed(line, parse) for line in _lines(file, budget)]
        except OSError as error:
            notes.append(_left_out(file, error))
            continue
        _note(file, records, notes)
        by_process[process] = tuple(record for record in records if record is not None)
    return by_process


def _lines(file: Path, budget: _FolderBudget) -> Iterator[bytes]:
    with open_regular(file) as content:
        while line := content.readline(min(max(budget.nbytes, 0) + 1, MOST_BYTES)):
            if not budget.allows(file.name, len(line), 1):
                return
            if line.strip():
                yield line


def _timelines(
    folder: Path, notes: list[str], budget: _FolderBudget
) -> tuple[Timeline, ...]:
    windows: list[Timeline] = []
    for process, file in sorted(_files(folder, r"timeline-\d+", ".json.gz")):
        if budget.nbytes <= 0:
            budget.left_out.append(file.name)
            continue
        try:
            text = timeline_text(file)
            # A value takes more memory than it has digits.
            size = max(len(text), _BYTES_A_VALUE * text.count(b","))
            timelines = timelines_in(text) if budget.allows(file.name, size) else []
        except (InputError, OSError) as error:
            budget.nbytes -= _LEAST_OF_A_WINDOW
            notes.append(_left_out(file, error))
            continue
        owner = f" of process {process}" if process else ""
        windows += [replace(t, allocator=f"{t.allocator}{owner}") for t in timelines]
    return tuple(windows)


def _files(folder: Path, stem: str, suffix: str) -> Iterator[tuple[int, Path]]:
    name = re.compile(rf"{stem}(?:-p(\d+))?{re.escape(suffix)}")
    for file in folder.iterdir():
        if match := name.fullmatch(file.name):
            yield int(match[1] or 0), file


def _parsed(line: bytes, parse: Callable[[str], _Record]) -> _Record | None:
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
