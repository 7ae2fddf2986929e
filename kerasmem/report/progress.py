"""A progress bar for `fit`, on stderr, that becomes plain lines without a terminal."""

# ruff: noqa: ARG002 - Keras fixes the signatures of the hooks.

import threading
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


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

    def on_train_begin(self, logs: Any = None) -> None:
        """Show the bars."""
        self._bar.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the epoch's bar."""
        self._done = 0
        self._task = self._bar.add_task(
            self._title(epoch), total=self._parameter("steps"), figures=""
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Move the epoch's bar."""
        with self._lock:
            self._done = max(self._done, batch + 1)  # they may come out of order
            self._bar.update(self._task, completed=self._done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the epoch's figures beside its bar, or print them on a line."""
        figures = ", ".join(f"{k} {v:.4g}" for k, v in sorted((logs or {}).items()))
        # A generator tells no total before its end.
        self._bar.update(self._task, total=self._done, figures=figures)
        if not self._console.is_terminal:
            line = f"{self._title(epoch)}: {figures}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def on_train_end(self, logs: Any = None) -> None:
        """Leave the bars as they are."""
        self._bar.stop()

    def _title(self, epoch: int) -> str:
        return f"{self._label}, epoch {epoch + 1}/{self._parameter('epochs') or '?'}"

    def _parameter(self, name: str) -> Any:
        return (self.params or {}).get(name)
