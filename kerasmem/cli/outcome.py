"""What a command found, for a person or for a program."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 120


@dataclass(frozen=True)
class Outcome:
    """The result of one command, in both of its forms.

    Args:
        data: plain data for `--json`.
        tables: what a person reads instead: rich renderables and lines of text.
        exit_code: of the command.
    """

    data: Mapping[str, Any]
    tables: tuple[Any, ...]
    exit_code: int = 0

    def to_json(self) -> str:
        """Return the data as JSON; NaN and infinity, which JSON lacks, become null."""
        return json.dumps(_finite(self.data), indent=2, allow_nan=False)

    def print_tables(self, stdout: TextIO) -> None:
        """Write the tables to `stdout`."""
        width = None if stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
        console = Console(file=stdout, width=width, highlight=False)
        for table in self.tables:
            # A path in brackets is a path, no markup.
            console.print(table, markup=False)


def progress_console() -> Console:
    """Return where progress goes: stderr."""
    return Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """Tell the user something on stderr, on one line."""
    progress_console().print(message, markup=False, soft_wrap=True)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
