"""Rows of the matrix, from two processes: one makes all models, one opens their files.

A family and a folder a line on stdin; one line of JSON back: cells, or what went wrong.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR


class Rows:
    """The processes that are asked for rows."""

    def __init__(self) -> None:
        self._children = [_Child("cells"), _Child("reopened")]

    def row(self, family: str) -> dict[str, str]:
        """Return the cells of a family.

        Raises:
            AssertionError: if something works otherwise than it should, or raises what
                is not an error of ours.
        """
        cells: dict[str, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            for child in self._children:
                cells |= child.answer(family, folder)
        return cells

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.close()


class _Child:
    """A process that answers by a function of `matrix`; a new one if it has died."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._process = self._begun()

    def _begun(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.keras_hub.rows", self._function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # TensorFlow's own CPU allocator tells the profiler nothing.
            env=os.environ | COUNTING_ALLOCATOR,
        )

    def answer(self, family: str, folder: str) -> dict[str, str]:
        if self._process.poll() is not None:
            self.close()
            self._process = self._begun()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{family} {folder}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"The process has ended with {self._process.wait()}.")
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        self._process.communicate()


def _cells(function: Any, family: str, folder: str) -> dict[str, str]:
    try:
        return function(family, Path(folder))
    except Exception:  # noqa: BLE001  (told where it is asked for)
        return {"error": traceback.format_exc()}


def main() -> None:
    """Answer until stdin ends."""
    import keras

    from tests.keras_hub import matrix

    function = getattr(matrix, sys.argv[1])
    # What is imported is not looked through again in every collection.
    gc.collect()
    gc.freeze()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        found = _cells(function, *line.rstrip("\n").split(maxsplit=1))
        out.write(f"{json.dumps(found)}\n")
        out.flush()
        keras.utils.clear_session()


if __name__ == "__main__":
    main()
