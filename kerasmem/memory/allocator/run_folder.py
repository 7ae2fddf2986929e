"""Timelines in a run's folder, from where `kerasmem report` draws them."""

import os
from pathlib import Path

from kerasmem.files.read_run import read_run
from kerasmem.files.timelines import add_timelines
from kerasmem.records import Timeline


def save_timeline(timeline: Timeline, log_dir: str | os.PathLike[str]) -> Path:
    """Add a timeline to a run's folder and return the path of its file.

    `kerasmem report LOG_DIR -o page.html` then draws what is in use over time, and the
    addresses.

    Args:
        timeline: recorded, of a `MemoryWatcher`, or of a `Replay`.
        log_dir: the folder; made if it is not there.

    Raises:
        OutputError: if it cannot be written.
    """
    return add_timelines(Path(log_dir), [timeline])


def load_timelines(log_dir: str | os.PathLike[str]) -> tuple[Timeline, ...]:
    """Return the timelines in a run's folder, such as `MemoryTimeline` writes.

    Raises:
        InputError: if there is no such folder, or nothing of a run in it.
    """
    return read_run(Path(log_dir)).timelines
