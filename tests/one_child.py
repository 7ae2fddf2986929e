"""One process for all that a module asks of processes with another backend."""

import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

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

        def answer_of_child(
            arguments: list[str],
            name: str,
            answer: Path,
            *,
            environment: Mapping[str, str],
            seconds: float | None,
        ) -> bytes:
            del name, seconds
            assert environment["KERAS_BACKEND"] == backend
            pool.submit(processes.work, Path(arguments[-2]), answer).result()
            return answer.read_bytes()

        patch.setattr(processes, "answer_of_child", answer_of_child)
        yield
