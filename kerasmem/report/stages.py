"""What a command is doing, on stderr: a line that changes, or one for each part."""

import time

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
        """Take the line away: what follows may show itself."""
        self._bar.stop()
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        seconds, name = time.perf_counter() - self._began, self._stage
        self._stage = ""
        is_told = name and name not in self._silent and seconds > _SECONDS
        if is_told and not self._console.is_terminal:
            line = f"{name}: {seconds:.1f} s"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
