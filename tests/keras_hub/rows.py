"""Rows of the matrix, each in forks of one process that has only imported so far.

One family a line on stdin; one line of JSON back: its cells, or what went wrong.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# TensorFlow's own CPU allocator tells the profiler nothing.
_ALLOCATOR = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}


class Rows:
    """The process that is asked for rows."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.keras_hub.rows"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | _ALLOCATOR,
        )

    def row(self, family: str) -> dict[str, str]:
        """Return the cells of a family.

        Raises:
            AssertionError: if something works otherwise than it should, or raises what
                is not an error of ours.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{family}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _forked(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if not child:
            try:
                found = function(*arguments)
            except BaseException:  # noqa: BLE001  (a fork must not go on as its parent)
                found = {"error": traceback.format_exc()}
            answer.write_text(json.dumps(found))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        return json.loads(answer.read_text()) if not status else {"error": status}


def main() -> None:
    """Answer until stdin ends."""
    from tests.keras_hub import matrix

    # What is imported is not looked through again in every collection of a fork.
    gc.collect()
    gc.freeze()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            arguments = line.strip(), folder
            cells = _forked(matrix.cells, *arguments)
            if "error" not in cells:
                cells |= _forked(matrix.reopened, *arguments)
        out.write(f"{json.dumps(cells)}\n")
        out.flush()


if __name__ == "__main__":
    main()
