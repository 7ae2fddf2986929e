"""What a command of the command line is: its options, and what it found."""

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
        flags: such as `("-o", "--output")`; the name alone of one by its place.
        settings: arguments for argparse's `add_argument`.
    """

    flags: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """The name of its value among the parsed options."""
        return self.flags[-1].removeprefix("--").replace("-", "_")


def option(*flags: str, **settings: Any) -> Option:
    """Return an option, from what `add_argument` takes."""
    return Option(flags, settings)


@dataclass(frozen=True)
class CommandResult:
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


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Command:
    """One command.

    Args:
        name: of the command.
        summary: one line for `--help`.
        options: all but `--json`, which every command has.
        run: takes the parsed options.
        starts_keras: whether Keras is there before `run` is called.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    run: Callable[[Namespace], CommandResult]
    starts_keras: bool = True


def command(
    name: str, summary: str, *options: Option, starts_keras: bool = True
) -> Callable[[Callable[[Namespace], CommandResult]], Command]:
    """Return a decorator that makes a command of the function which runs it."""
    return lambda run: Command(name, summary, options, run, starts_keras)


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def add(self, options: Iterable[Option]) -> None:
        """Add options."""
        for each in options:
            self.add_argument(*each.flags, **each.settings)

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
        """Parse as argparse does; what is unknown to a command is its own error."""
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
    """Return an argparse type that says what it expects.

    Args:
        parse: makes a value of a text, or raises a `ValueError`.
        expected: what the text should be.
        is_valid: whether a value can be used.
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
    """Return an argparse type: a whole number not below `least`."""
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
    help="a .keras or .h5 file, or the folder of a SavedModel of tf_keras or of a "
    "preset of KerasHub",
)

IMPORT = option(
    "--import",
    dest="imports",
    action="append",
    default=[],
    metavar="MODULE",
    help="import a module with the model's custom layers; repeatable",
)

LOSS = option(
    "--loss",
    help="for a model saved without one: its Keras name, or that with arguments, "
    "such as 'sparse_categorical_crossentropy(from_logits=True)'",
)

METRIC = option(
    "--metric", dest="metrics", action="append", default=[], help="repeatable"
)

SEED = option(
    "--seed",
    type=at_least(0),
    metavar="N",
    help="the same again with the same N (another every time)",
)

INPUT_SHAPE = option(
    "--input-shape",
    dest="input_shapes",
    type=checked(_lengths, "whole numbers, such as 128,64"),
    action="append",
    metavar="LENGTHS",
    help="lengths of an input without the batch axis, such as 128,64, if the model "
    "leaves one open; once per input, in the order of the inputs",
)

OUTPUT = option(
    "-o",
    "--output",
    required=True,
    type=Path,
    metavar="OUT",
    help="the .keras file to write, whole or not at all",
)


DATA = option(
    "--data",
    metavar="DATA",
    help="an .npz with x and y, or x_train, y_train, x_test, y_test; or "
    "package.module:function; of a language model, to compress or evaluate it, a "
    ".txt, or an .npy of ids",
)

REQUIRED_DATA = option("--data", **DATA.settings, required=True)

LENGTH = option(
    "--length",
    type=at_least(2),
    metavar="N",
    help="of a text or of token ids: tokens in a row (at most 256)",
)


def batch_of(default: int) -> Option:
    """Return `--batch-size`."""
    return option(
        "--batch-size",
        type=at_least(1),
        default=default,
        metavar="N",
        help=f"samples ({default})",
    )


def progress_console() -> Console:
    """Return where progress goes: stderr."""
    return Console(stderr=True, highlight=False)


def origin_of(options: Namespace) -> dict[str, Any]:
    """Return where a page comes from: the command as it was typed, and its seed."""
    command = shlex.join(["kerasmem", *sys.argv[1:]])
    return {"command": command, "seed": options.seed}


def say(message: str) -> None:
    """Tell the user something on stderr, on one line."""
    progress_console().print(message, markup=False, soft_wrap=True)
