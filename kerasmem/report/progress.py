"""Progress displays for `fit` and for commands. Without a terminal, plain lines."""

# ruff: noqa: ARG002 - Keras fixes the signatures of the hooks.

import threading
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

from kerasmem.types import Logs


class FitProgress(keras.callbacks.Callback):
    """Displays the progress of `fit` by epoch.

    On a terminal, shows one bar per epoch, followed by the metrics. Otherwise, prints
    one line per epoch. The callback never accesses `self.model` and therefore does not
    slow down training. Use it as a context manager around `fit` to restore the terminal
    after an exception. The default console is stderr.
    """

    # On JAX and torch, Keras does not synchronize before the batch hook.
    async_safe = True

    def __init__(self, label: str, console: Console | None = None) -> None:
        super().__init__()
        self._label = label
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: Any = None
        self._done = 0
        self._lock = threading.Lock()  # Keras may call batch hooks in several threads

    def __enter__(self) -> "FitProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_train_begin(self, logs: Logs = None) -> None:
        """Starts the display."""
        self._bar.start()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Adds the bar of the epoch."""
        self._done = 0
        self._task = self._bar.add_task(
            self._title(epoch), total=self._parameter("steps"), figures=""
        )

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Updates the bar of the epoch."""
        with self._lock:
            self._done = max(self._done, batch + 1)  # calls may be out of order
            self._bar.update(self._task, completed=self._done)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Shows the metrics of the epoch next to the bar or on a line."""
        figures = ", ".join(f"{k} {v:.4g}" for k, v in sorted((logs or {}).items()))
        # The total of a generator is unknown before its end.
        self._bar.update(self._task, total=self._done, figures=figures)
        if not self._console.is_terminal:
            _print_line(self._console, f"{self._title(epoch)}: {figures}")

    def on_train_end(self, logs: Logs = None) -> None:
        """Stops the display. The bars remain visible."""
        self._bar.stop()

    def _title(self, epoch: int) -> str:
        return f"{self._label}, epoch {epoch + 1}/{self._parameter('epochs') or '?'}"

    def _parameter(self, name: str) -> Any:
        return (self.params or {}).get(name)


_SECONDS = 2.0
"""Minimum duration of a stage reported without a terminal."""


class StageProgress:
    """Displays the current stage, with bytes and remaining time if known.

    On a terminal, shows one line that is removed at the end, also after an exception.
    Otherwise, prints each stage of more than two seconds when it ends. Stages named in
    `silent` are skipped. Use it as a context manager.
    """

    def __init__(self, console: Console, *silent: str) -> None:
        self._console, self._silent = console, silent
        self._stage, self._began = "", 0.0
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
            self._bar.add_task(stage, total=total or None)
            self._bar.start()
        for task in self._bar.task_ids:
            self._bar.update(task, completed=done, total=total or None)

    def _end(self) -> None:
        self._bar.stop()
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        seconds, name = time.perf_counter() - self._began, self._stage
        self._stage = ""
        is_told = name and name not in self._silent and seconds > _SECONDS
        if is_told and not self._console.is_terminal:
            _print_line(self._console, f"{name}: {seconds:.1f} s")


def _print_line(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
