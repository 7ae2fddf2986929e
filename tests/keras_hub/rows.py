"""Rows of the matrix, by two processes: one makes models, one opens their files."""

import gc
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR


class Rows:
    """The processes that compute rows, each by a function of `matrix`."""

    def __init__(self) -> None:
        self._pools = {name: _started() for name in ("cells", "reopened")}

    def row(self, family: str) -> dict[str, str]:
        """Return the cells of a family.

        Raises:
            Exception: if a feature works otherwise than it should, or a process dies.
        """
        cells: dict[str, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            for name, pool in self._pools.items():
                try:
                    cells |= pool.submit(_cells, name, family, Path(folder)).result()
                except BrokenProcessPool:
                    self._pools[name] = _started()
                    raise
        return cells

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools.values():
            pool.shutdown()


def _started() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with pytest.MonkeyPatch.context() as patch:
        # TensorFlow's own CPU allocator tells the profiler nothing.
        for name, value in COUNTING_ALLOCATOR.items():
            patch.setenv(name, value)
        pool.submit(_start).result()
    return pool


def _start() -> None:
    import tests.keras_hub.matrix  # noqa: F401

    # What is imported is not looked through again in every collection.
    gc.collect()
    gc.freeze()


def _cells(function: str, family: str, folder: Path) -> dict[str, str]:
    import keras

    from tests.keras_hub import matrix

    try:
        return getattr(matrix, function)(family, folder)
    finally:
        keras.utils.clear_session()
