"""Command line options that several commands share."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from kerasmem.errors import ConfigError, did_you_mean


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line on stderr."""
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong:
            known = re.findall(r"[\w-]+", wrong[2])
            message += f".{did_you_mean(wrong[1], known)}"
        words = message if message.endswith("?") else f"{message.removesuffix('.')}."
        self.exit(2, f"{self.prog}: error: {words} See: {self.prog} --help\n")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parse as argparse does; what is unknown to a command is its own error."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = did_you_mean(unknown[0].partition("=")[0], self._options())
            end = f".{near}" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{end}")
        return found, unknown

    def _options(self) -> list[str]:
        return [option for each in self._actions for option in each.option_strings]


def add_command(commands: Any, name: str, run: Callable, summary: str) -> Parser:
    """Return the parser of a new command, with the options that every command has.

    Args:
        commands: what `add_subparsers` returned.
        name: the command.
        run: takes the parsed options and returns an `Outcome`.
        summary: one line for `--help`.
    """
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.add_argument(
        "--json", action="store_true", help="write the result to stdout as JSON"
    )
    parser.set_defaults(run=run, imports=[], starts_keras=True)
    return parser


def add_model(parser: Parser) -> None:
    """Add the model to open."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .keras or .h5 file, or the folder of a SavedModel of tf_keras",
    )


def add_imports(parser: Parser) -> None:
    """Add `--import`, for commands that open a model."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module with the model's custom layers; repeatable",
    )


def add_data(parser: Parser, *, required: bool) -> None:
    """Add `--data`, and `--loss` and `--metric` to judge by."""
    add_samples(parser, required=required)
    add_loss(parser)
    parser.add_argument(
        "--metric", dest="metrics", action="append", default=[], help="repeatable"
    )


def add_samples(parser: Parser, *, required: bool) -> None:
    """Add `--data` alone."""
    parser.add_argument(
        "--data",
        required=required,
        metavar="DATA",
        help="an .npz with x and y, or x_train, y_train, x_test, y_test; or "
        "package.module:function",
    )


def add_loss(parser: Parser) -> None:
    """Add `--loss`."""
    parser.add_argument(
        "--loss",
        help="for a model saved without one: its Keras name, or that with arguments, "
        "such as 'sparse_categorical_crossentropy(from_logits=True)'",
    )


def add_batch_size(parser: Parser, default: int) -> None:
    """Add `--batch-size`."""
    parser.add_argument(
        "--batch-size",
        type=at_least(1),
        default=default,
        metavar="N",
        help=f"samples ({default})",
    )


def add_seed(parser: Parser) -> None:
    """Add `--seed`."""
    parser.add_argument(
        "--seed",
        type=at_least(0),
        metavar="N",
        help="the same again with the same N (another every time)",
    )


def add_input_shape(parser: Parser) -> None:
    """Add `--input-shape`, a list of tuples or None, as `input_shapes`."""
    parser.add_argument(
        "--input-shape",
        dest="input_shapes",
        type=_shape,
        action="append",
        metavar="LENGTHS",
        help="lengths of an input without the batch axis, such as 128,64, if the model "
        "leaves one open; once per input, in the order of the inputs",
    )


def add_output(parser: Parser) -> None:
    """Add `-o`, the model file to write."""
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        metavar="OUT",
        help="the .keras file to write, whole or not at all",
    )


def at_least(least: int) -> Callable[[str], int]:
    """Return an argparse type: a whole number not below `least`."""

    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least}, received {text!r}"
            )
        return number

    return whole_number


def not_negative(text: str) -> float:
    """Return the number that an argument stands for; an argparse type."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:  # written so that nan is refused
        raise argparse.ArgumentTypeError(
            f"expected a number of 0 or more, received {text!r}"
        )
    return number


def seconds(text: str) -> float:
    """Return the seconds that `"90"`, `"90s"`, `"10m"` or `"2h"` stand for."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    try:
        number = float(text[:-1] if factor else text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):  # written so that nan is refused
        raise argparse.ArgumentTypeError(
            f"expected a time such as 90, 10m or 2h, received {text!r}"
        )
    return number * (factor or 1)


def check_output(path: Path, suffix: str) -> None:
    """Raise unless a file can be made at `path`; long work should not end in this.

    Raises:
        ConfigError: if the suffix is another, or the folder is missing.
    """
    if path.suffix != suffix:
        raise ConfigError(f"The output must end in {suffix}. Received: {str(path)!r}.")
    if not path.parent.is_dir():
        raise ConfigError(
            f"There is no folder {str(path.parent)!r} for the output. Received: "
            f"{str(path)!r}. Next: make the folder."
        )
    try:
        path.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"The output leads round in a circle of links. Received: {str(path)!r}."
        ) from error
    if path.is_dir():
        raise ConfigError(f"The output is a folder. Received: {str(path)!r}.")


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(length) for length in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers, such as 128,64; received {text!r}"
        ) from error
