"""Changes a prepared folder at random, calls kerasmem in a child, and judges it."""

import hashlib
import shutil
import stat
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.fuzz.forked import forked
from tests.fuzz.graphs.operation import Draw
from tests.fuzz.outcome import Outcome, WrongResultError, line_of
from tests.fuzz.states import presets, runs

KINDS: dict[str, Any] = {"presets": presets, "runs": runs}
MOST_SECONDS = 10
MOST_BYTES = 1 << 30
_HASHED_BYTES = 1 << 26

_last: dict[str, int] = {"rss_bytes": 0}


@cache
def sound(kind: str) -> Path:
    """Return the folder that `prepare` wrote, in a child: nothing is computed here."""
    folder = Path(tempfile.mkdtemp(prefix=f"sound-{kind}-"))
    outcome, _ = forked(partial(_prepared, kind, folder), folder, seconds=120)
    if outcome.word != "ok":
        raise RuntimeError(outcome.reason)
    return folder


def drawn(seed: int) -> dict[str, Any]:
    """Return the case of a seed. The kinds take turns."""
    draw = Draw(f"state {seed}")
    kind = list(KINDS)[seed % len(KINDS)]
    return {
        "kind": kind,
        "request": KINDS[kind].drawn(draw),
        "mutations": [draw.getrandbits(31) for _ in range(draw.choice((1, 1, 1, 2)))],
    }


def run(case: dict[str, Any]) -> Outcome:
    """Return the outcome of a case in a room of its own."""
    kind = KINDS[case["kind"]]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        room = Path(folder) / "outer" / "room"
        shutil.copytree(sound(case["kind"]), room)
        (room / "precious").write_bytes(b"p" * 10_001)
        (room.parent / "precious").write_bytes(b"p" * 10_001)
        outcome, _ = forked(partial(_changed, kind, room, case), room, MOST_SECONDS)
        if outcome.word != "ok":
            return Outcome("unfit", outcome.reason)
        own = kind.own(room, case["request"])
        before = snapshot(Path(folder), own)
        work = partial(judged, kind, room, case["request"])
        outcome, most = forked(work, room, MOST_SECONDS)
        _last["rss_bytes"] = most - _import_bytes()
        after = snapshot(Path(folder), own)
    if outcome.word == "hang":  # It was killed: what it leaves is no fault of its own.
        return outcome
    if changed := sorted(
        name for name in before.keys() | after if before.get(name) != after.get(name)
    ):
        return Outcome("touched", f"{case['kind']}: {changed}")
    if _last["rss_bytes"] > MOST_BYTES and not outcome.failed:
        return Outcome("too much memory", f"{_last['rss_bytes'] >> 20} MiB")
    return outcome


def judged(kind: Any, room: Path, request: Any) -> Outcome:
    """Return the outcome of one call."""
    from kerasmem.errors import KerasMemError

    try:
        kind.use(room, request)
    except KerasMemError as error:
        return Outcome("refused", " ".join(str(error).split())[:2000])
    except WrongResultError as error:
        return Outcome("wrong value", str(error)[:300])
    except BaseException as error:  # noqa: BLE001 - every other exception is a failure
        name = type(error).__name__
        return Outcome("exception", f"{name} at {line_of(error)}: {str(error)[:300]}")
    return Outcome("ok")


def snapshot(folder: Path, own: set[Path]) -> dict[str, Any]:
    """Return type, mode and content of all paths in a folder except those in `own`."""
    return {
        str(path.relative_to(folder)): _state(path)
        for path in folder.rglob("*")
        if path not in own
    }


def _state(path: Path) -> Any:
    status = path.lstat()
    form = status.st_mode, status.st_size * (not stat.S_ISDIR(status.st_mode))
    if stat.S_ISLNK(status.st_mode):
        return *form, str(path.readlink())
    if stat.S_ISREG(status.st_mode) and status.st_size < _HASHED_BYTES:
        return *form, hashlib.sha256(path.read_bytes()).hexdigest()
    return form


def _prepared(kind: str, folder: Path) -> Outcome:
    KINDS[kind].prepare(folder)
    return Outcome("ok")


def _changed(kind: Any, room: Path, case: dict[str, Any]) -> Outcome:
    try:
        for number in case["mutations"]:
            kind.change(room, case["request"], Draw(number))
    except Exception as error:  # noqa: BLE001 - an earlier change may prevent this one
        return Outcome("unfit", f"{type(error).__name__}: {error}")
    return Outcome("ok")


@cache
def _import_bytes() -> int:
    """Return the resident memory of a child without work."""
    return forked(partial(Outcome, "ok"), Path.cwd())[1]


def kinds(case: dict[str, Any]) -> list[str]:
    """Return the kind of folder and the values of the request."""
    return [f"{case['kind']}: {k}={v}" for k, v in case["request"].items()]


def main() -> None:
    """Serve until the input ends."""
    # Imported here, so that no child has to import them.
    import keras  # noqa: F401

    import kerasmem.public  # noqa: F401
    import kerasmem.report.run  # noqa: F401
    from tests.fuzz.serve import serve

    serve(drawn, run, kinds, _last)


if __name__ == "__main__":
    main()
