"""Progress of a `fit` or a command, which becomes plain lines without a terminal."""

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
    """Shows each epoch and its batches while `fit` runs.

    On a terminal it is one bar per epoch, which stays with the epoch's figures when
    the epoch is over; elsewhere one line per epoch. It never reads `self.model`, so
    it does not slow a step down. Use it as a context manager around `fit`: an
    exception then leaves the terminal in order.

    Args:
        label: what is being trained, such as `"fine-tuning"`.
        console: where to write; by default stderr.
    """

    # Keras then need not wait for the batch hook on JAX and torch.
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
        """Show the bars."""
        self._bar.start()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Start the epoch's bar."""
        self._done = 0
        self._task = self._bar.add_task(
            self._title(epoch), total=self._parameter("steps"), figures=""
        )

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Move the epoch's bar."""
        with self._lock:
            self._done = max(self._done, batch + 1)  # they may come out of order
            self._bar.update(self._task, completed=self._done)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Put the epoch's figures beside its bar, or print them on a line."""
        figures = ", ".join(f"{k} {v:.4g}" for k, v in sorted((logs or {}).items()))
        # A generator tells no total before its end.
        self._bar.update(self._task, total=self._done, figures=figures)
        if not self._console.is_terminal:
            _print_line(self._console, f"{self._title(epoch)}: {figures}")

    def on_train_end(self, logs: Logs = None) -> None:
        """Leave the bars as they are."""
        self._bar.stop()

    def _title(self, epoch: int) -> str:
        return f"{self._label}, epoch {epoch + 1}/{self._parameter('epochs') or '?'}"

    def _parameter(self, name: str) -> Any:
        return (self.params or {}).get(name)


_SECONDS = 2.0
"""So long a stage may take without a word, where there is no terminal."""


class StageProgress:
    """Shows the stage that is under way, with its bytes and the time left if known.

    On a terminal it is one line, which is gone at the end, also after an exception;
    elsewhere each stage that took two seconds is told when it is over. Use it as a
    context manager.

    Args:
        console: where to write.
        silent: names of stages that show themselves.
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
        """Show that a stage begins, or how far it is."""
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
