"""A process that has everything imported and nothing computed, and forks for each file.

What a damaged file does happens in the child: it has a limit of memory and of time, and
the most memory that it had resident is known when it has ended.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.files.mutate import damage
from tests.fuzz.files.mutate_json import SENTINEL
from tests.fuzz.files.readers import outcome_of, readers_of
from tests.fuzz.graphs.operation import Draw
from tests.fuzz.outcome import Outcome

MOST_BYTES = 6 << 30
MOST_SECONDS = 20
MOST_BYTES_RESIDENT = 750 << 20
"""500 MiB, and what sound files take as well: TensorFlow starts in the child. What an
archive says its arrays have comes to it: these are the model's own bytes."""

_last: dict[str, int] = {"rss_bytes": 0}


@cache
def bases() -> Path:
    """Return the folder with the sound files, written once, in a process of its own."""
    folder = Path(tempfile.gettempdir()) / "bases"
    if not folder.exists():
        unfinished = Path(tempfile.mkdtemp())
        command = [sys.executable, "-m", "tests.fuzz.files.bases", str(unfinished)]
        subprocess.run(command, check=True, stdout=2)
        unfinished.rename(folder)
    return folder


def drawn(seed: int) -> dict[str, Any]:
    """Return the case of a seed: a base, what is done to it, and who reads it."""
    draw = Draw(f"file {seed}")
    names = sorted(p.name for p in bases().iterdir() if p.name != "all_old")
    base = draw.choice(names)
    return {
        "base": base,
        "reader": draw.choice(readers_of(base)),
        "mutations": [draw.getrandbits(31) for _ in range(draw.choice((1, 1, 1, 2)))],
    }


def run(case: dict[str, Any]) -> Outcome:
    """Damage a copy of the base in a child, and read it there."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        room = Path(folder) / "room"
        room.mkdir()
        precious = room / "precious"
        precious.write_bytes(b"p" * 10_001)
        outcome = _forked(case, room)
        if (room / SENTINEL).exists() or (room.parent / SENTINEL).exists():
            return Outcome("executed", f"{case['reader']} of {case['base']}")
        if precious.read_bytes() != b"p" * 10_001:
            return Outcome(
                "executed", f"{case['reader']}: a file elsewhere was changed"
            )
    return outcome


def _forked(case: dict[str, Any], room: Path) -> Outcome:
    bases()  # or the child would write its own
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        _in_child(case, room, question)
    os.close(question)
    end = time.monotonic() + 1.5 * MOST_SECONDS
    usage = None
    while usage is None and time.monotonic() < end:
        found, status, rusage = os.wait4(child, os.WNOHANG)
        if found:
            usage = rusage
        else:
            time.sleep(0.005)
    if usage is None:
        os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        os.close(answer)
        return Outcome("hang", f"{case['reader']} of {case['base']}")
    with os.fdopen(answer, "rb") as pipe:
        told = pipe.read()
    most = usage.ru_maxrss * 1024
    _last["rss_bytes"] = most
    outcome = _told(told, status, case)
    allowed = MOST_BYTES_RESIDENT
    if (
        not outcome.failed
        and most > allowed
        and most > allowed + _own_bytes(room, case)
    ):
        what = f"{case['reader']} of {case['base']}: {most >> 20} MiB"
        return Outcome("too much memory", what)
    return outcome


def _own_bytes(room: Path, case: dict[str, Any]) -> int:
    path = room / case["base"]
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError):
        return 0  # another kind of file, or a folder
    arrays = [m for m in members if m.filename.endswith((".h5", ".npy"))]
    return min(sum(member.file_size for member in arrays), 1 << 30)


def _told(told: bytes, status: int, case: dict[str, Any]) -> Outcome:
    what = f"{case['reader']} of {case['base']}"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        word = "hang" if number in (signal.SIGXCPU, signal.SIGALRM) else "crash"
        return Outcome(word, f"{what}: {signal.Signals(number).name}")
    if not told:
        return Outcome("crash", f"{what}: exit code {os.WEXITSTATUS(status)}")
    return Outcome(**json.loads(told))


def _in_child(case: dict[str, Any], room: Path, question: int) -> None:
    os.chdir(room)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    path = room / case["base"]
    source = bases() / case["base"]
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    try:
        for number in case["mutations"]:
            damage(path, number)
    except Exception as error:  # noqa: BLE001 - what is damaged already may not open
        outcome = Outcome("unfit", f"{type(error).__name__}")
    else:
        start = time.process_time()
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(start) + MOST_SECONDS + 1, resource.RLIM_INFINITY)
        )
        outcome = outcome_of(case["reader"], path)
    os.write(question, json.dumps(outcome.to_json()).encode())
    os._exit(0)


def kinds(case: dict[str, Any]) -> list[str]:
    """Return what a case is made of."""
    return [f"{case['reader']} of {case['base']}"]


def main() -> None:
    """Serve until the input ends."""
    import keras  # noqa: F401
    import matplotlib.pyplot  # noqa: F401, ICN001

    import kerasmem  # noqa: F401
    import kerasmem.cli.main  # noqa: F401
    from tests.fuzz.serve import serve

    serve(drawn, run, kinds, _last)


if __name__ == "__main__":
    main()
