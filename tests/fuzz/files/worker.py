"""A process that has everything imported and nothing computed, and forks for each file.

What a damaged file does happens in the child: it has a limit of memory and of time, and
the most memory that it had resident is known when it has ended.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.fuzz.files.mutate import damage
from tests.fuzz.files.mutate_json import SENTINEL
from tests.fuzz.files.readers import outcome_of, readers_of
from tests.fuzz.forked import forked
from tests.fuzz.graphs.operation import Draw
from tests.fuzz.outcome import Outcome

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
        with suppress(OSError):  # another process was quicker
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
    """Damage a copy of the base, and read it; what else happens on the way shows."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        room = Path(folder) / "room"
        room.mkdir()
        precious = room / "precious"
        precious.write_bytes(b"p" * 10_001)
        outcome = _damaged_and_read(case, room)
        if (room / SENTINEL).exists() or (room.parent / SENTINEL).exists():
            return Outcome("executed", f"{case['reader']} of {case['base']}")
        if precious.read_bytes() != b"p" * 10_001:
            return Outcome(
                "executed", f"{case['reader']}: a file elsewhere was changed"
            )
    return outcome


def _damaged_and_read(case: dict[str, Any], room: Path) -> Outcome:
    """Damage in one child and read in another: the memory is that of the reader."""
    bases()  # or a child would write its own
    path, what = room / case["base"], f"{case['reader']} of {case['base']}"
    outcome, _ = forked(partial(_damaged, case, path), room)
    if outcome.word != "ok":
        return Outcome("unfit", outcome.reason)
    outcome, most = forked(partial(outcome_of, case["reader"], path), room)
    _last["rss_bytes"] = most
    if outcome.word in ("crash", "hang"):
        return Outcome(outcome.word, f"{what}: {outcome.reason}")
    over = most - MOST_BYTES_RESIDENT
    if over > 0 and not outcome.failed and over > _own_bytes(path):
        return Outcome("too much memory", f"{what}: {most >> 20} MiB")
    return outcome


def _own_bytes(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError):
        return 0  # another kind of file, or a folder
    arrays = [m for m in members if m.filename.endswith((".h5", ".npy"))]
    return min(sum(member.file_size for member in arrays), 1 << 30)


def _damaged(case: dict[str, Any], path: Path) -> Outcome:
    source = bases() / case["base"]
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    try:
        for number in case["mutations"]:
            damage(path, number)
    except Exception as error:  # noqa: BLE001 - what is damaged already may not open
        return Outcome("unfit", f"{type(error).__name__}")
    return Outcome("ok")


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
