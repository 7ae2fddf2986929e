"""Progress displays for `fit` and for commands. Without a terminal, plain lines."""

import sys
import time
from typing import Any

import keras
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kerasmem.stages import Announcer


class FitProgress(keras.callbacks.ProgbarLogger):
    """Displays the progress of `fit` as Keras does, also with `fit(verbose=0)`.

    On a terminal, shows one bar per epoch. Otherwise, prints one line per epoch.
    Commands send this output to stderr.
    """

    def set_params(self, params: dict[str, Any]) -> None:
        """Sets the form of the display."""
        super().set_params({**params, "verbose": 1 if sys.stdout.isatty() else 2})


_SECONDS = 2.0
"""Minimum duration of a stage reported without a terminal."""


class StageProgress:
    """Displays the current stage, with bytes and remaining time if known.

    On a terminal, shows one line that is removed at the end, also after an exception.
    Otherwise, prints each stage of more than two seconds when it ends, and once it
    takes ten. Stages named in `silent` are skipped. Use it as a context manager.
    """

    def __init__(self, console: Console, *silent: str) -> None:
        self._console, self._silent = console, silent
        self._stage, self._began, self._waits = "", 0.0, Announcer()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "StageProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Reports the start or the progress of a stage."""
        if stage != self._stage:
            self._end()
            self._stage, self._began = stage, time.perf_counter()
            if stage in self._silent:
                return
            if not self._console.is_terminal:
                self._waits(stage)
            self._bar.add_task(stage, total=total or None)
            self._bar.start()
        for task in self._bar.task_ids:
            self._bar.update(task, completed=done, total=total or None)

    def _end(self) -> None:
        self._bar.stop()
        self._waits.stop()
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        seconds, name = time.perf_counter() - self._began, self._stage
        self._stage = ""
        is_told = name and name not in self._silent and seconds > _SECONDS
        if is_told and not self._console.is_terminal:
            line = f"{name}: {seconds:.1f} s"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
