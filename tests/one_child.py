"""One process for all that a module asks of processes with another backend."""

import multiprocessing
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kerasmem import processes


@contextmanager
def one_child(backend: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Have one process answer what `run_in_child` asks, for each would take seconds.

    Orders and answers are the files that they always are.

    Args:
        backend: its Keras backend, which no question may be for another of.
        environment: its environment variables beside those of this process.
    """
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.MonkeyPatch.context() as patch,
    ):
        with pytest.MonkeyPatch.context() as started:
            for name, value in {**environment, "KERAS_BACKEND": backend}.items():
                started.setenv(name, value)
            pool.submit(int).result()

        def run(command: list[str], *, env: Mapping[str, str], **_: Any) -> Any:
            assert env["KERAS_BACKEND"] == backend
            order, answer = map(Path, command[-2:])
            pool.submit(processes.work, order, answer).result()
            return subprocess.CompletedProcess(command, 0, "", "")

        own = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
        patch.setattr(processes, "subprocess", own)
        yield
