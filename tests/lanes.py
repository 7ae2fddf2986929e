"""Which tests a lane runs, by how long they took before.

`tests/durations/BACKEND.json` has the seconds of the longer tests in the last run that
wrote them: `pytest -n 2 --dist loadfile --write-durations`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "durations"
SLOW_SECONDS = 0.7
"""A test that took longer on TensorFlow is marked `slow`."""
MOST_SECONDS = 8.0
"""The shortest test of a file is not, unless it took longer than this."""


def durations(backend: str) -> dict[str, float]:
    """Return seconds by test, of those that took `SLOW_SECONDS` or more."""
    path = FOLDER / f"{backend}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_durations(backend: str, seconds: dict[str, float]) -> None:
    """Write the list, the longest first; what did not run keeps its seconds."""
    known = durations(backend) | seconds
    longest = sorted(known.items(), key=lambda one: (-one[1], one[0]))
    kept = {name: round(took, 1) for name, took in longest if took >= SLOW_SECONDS}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{backend}.json").write_text(json.dumps(kept, indent=0) + "\n")


def slow(names: Sequence[str], seconds: dict[str, float]) -> set[str]:
    """Return the slow ones; of a file in which all are, the shortest mostly is not.

    Args:
        names: of all tests, as `tests/a/test_b.py::test_c[d]`.
        seconds: by test.

    Example:
        >>> sorted(slow(["a::x", "a::y", "b::x"], {"a::x": 3, "a::y": 2, "b::x": 7}))
        ['a::x']
        >>> slow(["b::x"], {"b::x": 20})
        {'b::x'}
    """
    shortest: dict[str, str] = {}
    for name in names:
        file = name.partition("::")[0]
        best = shortest.setdefault(file, name)
        if seconds.get(name, 0.0) < seconds.get(best, 0.0):
            shortest[file] = name
    fast = {name for name in shortest.values() if seconds.get(name, 0.0) < MOST_SECONDS}
    return set(seconds) & set(names) - fast
