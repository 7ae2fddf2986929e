"""Shared options, commands and results of the command line."""

import argparse
import json
import math
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from rich.console import Console

from kerasmem.errors import did_you_mean

_WIDTH_WITHOUT_TERMINAL = 120

Value = TypeVar("Value")


@dataclass(frozen=True)
class Option:
    """One argument of a command.

    Args:
        flags: Flags such as `("-o", "--output")`, or the name of a positional argument.
        settings: Arguments for argparse's `add_argument`.
    """

    flags: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """Name of the parsed value."""
        return self.flags[-1].removeprefix("--").replace("-", "_")


def option(*flags: str, **settings: Any) -> Option:
    """Create an option from the arguments of `add_argument`."""
    return Option(flags, settings)


def varied(base: Option, *sentences: str, **settings: Any) -> Option:
    """Return an option with more sentences in its help, or with other settings."""
    words = " ".join((base.settings["help"], *sentences))
    return option(*base.flags, **{**base.settings, "help": words, **settings})


@dataclass(frozen=True)
class CommandResult:
    """Result of a command as data and as tables.

    `data` is for `--json`, and `tables` are for the terminal.
    """

    data: Mapping[str, Any]
    tables: tuple[Any, ...]
    exit_code: int = 0

    def to_json(self) -> str:
        """Return the data as JSON, with null in place of NaN and infinity."""
        return json.dumps(_finite(self.data), indent=2, allow_nan=False)

    def print_tables(self, stdout: TextIO) -> None:
        """Write the tables to `stdout`."""
        width = None if stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
        console = Console(file=stdout, width=width, highlight=False)
        for table in self.tables:
            # A path in brackets must not be parsed as markup.
            console.print(table, markup=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_EXIT_CODES = "Exit codes: 0 success; 1 a defect of kerasmem; 2 invalid usage or input"
EXIT_CODES_WITH_LIMIT = f"{_EXIT_CODES}; 3 a limit not met (--max-drop, --target)."


@dataclass(frozen=True)
class Command:
    """One command."""

    name: str
    summary: str
    options: tuple[Option | str, ...]
    run: Callable[[Namespace], CommandResult]
    starts_keras: bool = True
    exit_codes: str = f"{_EXIT_CODES}."


def command(
    name: str, summary: str, *options: Option | str, **settings: Any
) -> Callable[[Callable[[Namespace], CommandResult]], Command]:
    """Return a decorator that creates a command from its function."""
    return lambda run: Command(name, summary, options, run, **settings)


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def add(self, options: Iterable[Option | str]) -> None:
        """Add options. A string starts an argument group with this title."""
        group: Any = self
        for each in options:
            if isinstance(each, str):
                group = self.add_argument_group(each)
            else:
                group.add_argument(*each.flags, **each.settings)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line on stderr."""
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            choices = re.findall(r"[\w-]+", wrong[2])
            message += f".{did_you_mean(wrong[1], choices)}"
        words = message if message.endswith("?") else f"{message.removesuffix('.')}."
        self.exit(2, f"{self.prog}: error: {words} See: {self.prog} --help\n")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parse as argparse does, but report unknown arguments for the subcommand."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [flag for each in self._actions for flag in each.option_strings]
            near = did_you_mean(unknown[0].partition("=")[0], flags)
            end = f".{near}" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{end}")
        return options, unknown


def checked(
    parse: Callable[[str], Value],
    expected: str,
    is_valid: Callable[[Value], bool] = lambda _: True,
) -> Callable[[str], Value]:
    """Return an argparse type with a specific error message.

    `expected` describes valid strings in the message.
    """

    def value_of(text: str) -> Value:
        try:
            value = parse(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, received {text!r}")
        return value

    return value_of


def at_least(least: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers >= `least`."""
    words = f"a whole number from {least}"
    return checked(int, words, lambda number: number >= least)


def _seconds(text: str) -> float:
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return float(text[:-1]) * factor if factor else float(text)


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


not_negative = checked(float, "a number of 0 or more", lambda number: number >= 0)

seconds = checked(
    _seconds, "a time such as 90, 10m or 2h", lambda time: 0 <= time < math.inf
)

MODEL = option(
    "model",
    metavar="MODEL",
    help="Model file (.keras or .h5), or folder of a tf_keras SavedModel or a "
    "KerasHub preset.",
)

IMPORT = option(
    "--import",
    dest="imports",
    action="append",
    default=[],
    metavar="MODULE",
    help="Import a module with custom layers of the model. Repeatable.",
)

LOSS = option(
    "--loss",
    help="Loss, in place of the loss of the model: a Keras name, optionally with "
    "arguments, such as 'sparse_categorical_crossentropy(from_logits=True)' (default: "
    "the loss of the model).",
)

METRIC = option(
    "--metric",
    dest="metrics",
    action="append",
    default=[],
    help="Keras name of a metric, such as accuracy (default: the metrics of the "
    "model). Repeatable.",
)

SEED = option(
    "--seed",
    type=at_least(0),
    metavar="N",
    help="Random seed (default: a new seed for each run).",
)

INPUT_SHAPE = option(
    "--input-shape",
    dest="input_shapes",
    type=checked(_lengths, "whole numbers, such as 128,64"),
    action="append",
    metavar="LENGTHS",
    help="Input shape without the batch axis, such as 128,64, if the model has open "
    "lengths. Once per input, in the order of the inputs.",
)

OUTPUT = option(
    "-o",
    "--output",
    required=True,
    type=Path,
    metavar="OUT",
    help="Output file (.keras). Nothing is written if the command fails.",
)


DATA = option(
    "--data",
    metavar="DATA",
    help="Dataset: an .npz file with x and y, or x_train, y_train, x_test, y_test; or "
    "package.module:function.",
)

DATA_OR_TOKENS = varied(
    DATA, "For language models: a text file (.txt) or token ids (.npy)."
)

REPORT = option(
    "--report", type=Path, metavar="FILE.html", help="Write an HTML report."
)

LENGTH = option(
    "--length",
    type=at_least(2),
    metavar="N",
    help="Number of tokens per row, for text or token ids (default: at most 256).",
)


def measure_of(*names: str) -> Option:
    """Return the option for the figures to measure, with default names."""
    return option(
        "--measure",
        type=lambda text: tuple(text.replace(" ", "").split(",")),
        default=names,
        metavar="NAMES",
        help="Comma-separated figures to measure: file, weights, metrics, activations "
        f"(bytes), latency (ms per batch) (default: {','.join(names)}).",
    )


def batch_of(default: int) -> Option:
    """Return the option `--batch-size`."""
    return option(
        "--batch-size",
        type=at_least(1),
        default=default,
        metavar="N",
        help=f"Number of samples per batch (default: {default}).",
    )


def progress_console() -> Console:
    """Return the console for progress, on stderr."""
    return Console(stderr=True, highlight=False)


def origin_of(options: Namespace) -> dict[str, Any]:
    """Return the command line and the seed, for the footer of a page."""
    command = shlex.join(["kerasmem", *sys.argv[1:]])
    return {"command": command, "seed": options.seed}


def say(message: str) -> None:
    """Print a message on stderr in one line."""
    progress_console().print(message, markup=False, soft_wrap=True)
