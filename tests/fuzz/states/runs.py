"""The folder of a monitored run: read, shown, exported and appended to."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fuzz.files.mutate import changed_folder
from tests.fuzz.graphs.operation import Draw
from tests.fuzz.outcome import WrongResultError
from tests.fuzz.states.below import Below

_CALLS = ("page", "page", "tensorboard", "append")


def prepare(room: Path) -> None:
    """Write a run with records of every kind."""
    from tests.fuzz.files.bases import write_run

    write_run(room / "run")


def drawn(draw: Draw) -> dict[str, Any]:
    """Return a call."""
    return {"call": draw.choice(_CALLS)}


def change(room: Path, request: dict[str, Any], draw: Draw) -> None:
    """Damage or replace a file, add one, or occupy the output."""
    draw.choice(_WAYS)(room, draw)


def own(room: Path, request: dict[str, Any]) -> set[Path]:
    """Return the page, the folder of event files, or the folder of the run."""
    if request["call"] == "append":
        return Below(room / "run")
    output = room / ("page.html" if request["call"] == "page" else "events")
    return Below(Path(os.path.realpath(output)))  # a link that the user named


def use(room: Path, request: dict[str, Any]) -> None:
    """Read the run, and write what the call asks for."""
    from kerasmem.extras.trackers import logged
    from kerasmem.files.read_run import read_run
    from kerasmem.files.run_dir import add_post_mortem, add_timelines
    from kerasmem.report.run import write_run_page
    from tests.report.runs import small_run

    if request["call"] == "append":
        run = small_run()
        with suppress(OSError):  # a monitor warns
            add_timelines(room / "run", run.timelines)
        with suppress(OSError):
            add_post_mortem(room / "run", run.post_mortems[0])
    elif request["call"] == "tensorboard":
        run = read_run(room / "run")
        logged(run, room / "page.html", "tensorboard", room / "events")
    else:
        write_run_page(read_run(room / "run"), room / "page.html")
        text = (room / "page.html").read_text()
        if not text.rstrip().endswith("</html>") or "p" * 1000 in text:
            raise WrongResultError("page.html")


def _change_file(room: Path, draw: Draw) -> None:
    changed_folder(room / "run", draw)


def _add(room: Path, draw: Draw) -> None:
    """Copy a file under a name of another process or another number."""
    file = draw.choice(sorted(p for p in (room / "run").iterdir() if p.is_file()))
    names = ("memory-p1.jsonl", "memory-p.jsonl", "gradients-p-1.jsonl", "x.jsonl",
             "timeline-99999999999999999999.json.gz", "timeline--1.json.gz",
             "findings-p2.jsonl", "post_mortems-p3.jsonl", "run-p1.json")  # fmt: skip
    shutil.copy(file, file.with_name(draw.choice(names)))


def _occupy(room: Path, draw: Draw) -> None:
    """Create something at the path of an output."""
    path = room / draw.choice(("page.html", "events", "run/memory.jsonl"))
    path.unlink(missing_ok=True)
    way = draw.choice(("file", "folder", "link", "lost", "fifo"))
    if way == "file":
        path.write_bytes(b"precious")
    elif way == "folder":
        path.mkdir()
    elif way == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(room / ("precious" if way == "link" else "lost"))


_WAYS: tuple[Callable[[Path, Draw], None], ...] = (
    _change_file, _change_file, _change_file, _change_file, _add, _occupy,
)  # fmt: skip
