"""From the command line to an exit code: 0 for success, 2 for bad usage or input."""

import os
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

from kerasmem.cli import (
    compress,
    convert,
    demo,
    distill,
    estimate,
    evaluate,
    inspect,
    report,
    runtimes,
    tune,
)
from kerasmem.cli import run as run_command
from kerasmem.cli.framework import importable_from_here, start_keras
from kerasmem.cli.handed_in import check_handed_in
from kerasmem.cli.options import Parser
from kerasmem.cli.outcome import Outcome
from kerasmem.errors import (
    KerasMemError,
    KerasMemWarning,
    shortened,
)

_COMMANDS = (
    demo,
    inspect,
    estimate,
    tune,
    compress,
    convert,
    distill,
    evaluate,
    runtimes,
    report,
    run_command,
)
_FAILED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The result goes to stdout, all else to stderr. What is wrong with the input is said
    in one line; a mistake of our own comes with its traceback.

    Args:
        arguments: the command line without the program's name; `sys.argv` by default.
    """
    options = build_parser().parse_args(arguments)
    stdout = sys.stdout
    try:
        # Keras, the backends and the user's own modules may print: not into a result.
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            _say_warnings_in_one_line()
            outcome = _run(options)
        _show(outcome, options, stdout)
    except KeyboardInterrupt:
        return _fail("Interrupted. Nothing was left half-written.")
    except (KerasMemError, OSError) as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("The host has too little memory for this.")
    return outcome.exit_code


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    import importlib.metadata

    parser = Parser(
        prog="kerasmem",
        description="See where the memory of a Keras 3 model goes, and make the model "
        "smaller.",
    )
    version = importlib.metadata.version("kerasmem")
    parser.add_argument("--version", action="version", version=f"kerasmem {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return parser


def _run(options: Namespace) -> Outcome:
    if not options.starts_keras:
        return options.run(options)
    # A wrong name is said at once, and not when TensorFlow is there.
    check_handed_in(options)
    with importable_from_here():
        objects = start_keras(options.imports)
        import keras

        with keras.saving.custom_object_scope(objects), _temporary_folder():
            return options.run(options)


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """Let all that is temporary, of children too, be in one folder.

    The next command removes it if this one is killed.
    """
    from kerasmem.files.atomic import held_folder

    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with held_folder(Path(tempfile.gettempdir())) as folder:
        tempfile.tempdir, os.environ["TMPDIR"] = str(folder), str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before[0]
            os.environ.pop("TMPDIR")
            if before[1] is not None:
                os.environ["TMPDIR"] = before[1]


def _show(outcome: Outcome, options: Namespace, stdout: TextIO) -> None:
    if options.json:
        print(outcome.to_json(), file=stdout)
    else:
        outcome.print_tables(stdout)
    stdout.flush()


def _fail(message: str) -> int:
    line = shortened(" ".join(message.split()))
    print(f"kerasmem: error: {line}", file=sys.stderr)
    return _FAILED


def _say_warnings_in_one_line() -> None:
    """Show our own warnings without the line of code; to be undone by the caller."""
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
        if issubclass(category, KerasMemWarning):
            print(f"kerasmem: warning: {message}", file=sys.stderr)
        else:
            default(message, category, *rest)  # pyright: ignore[reportArgumentType]

    warnings.showwarning = show  # pyright: ignore[reportAttributeAccessIssue]
    warnings.simplefilter("always", KerasMemWarning)
