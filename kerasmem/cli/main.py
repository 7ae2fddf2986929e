"""Parses the command line, runs one command and returns its exit code."""

import importlib
import os
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kerasmem.checks import BACKENDS
from kerasmem.cli.command import (
    EXIT_CODES_WITH_LIMIT,
    CommandResult,
    Parser,
    option,
)
from kerasmem.cli.compare import compare, evaluate
from kerasmem.cli.compress import compress
from kerasmem.cli.distill import distill
from kerasmem.cli.formats import convert, export, runtimes
from kerasmem.cli.inspect import inspect
from kerasmem.cli.memory import estimate, tune
from kerasmem.cli.run import demo, report, run
from kerasmem.errors import (
    ChildDiedError,
    ConfigError,
    KerasMemError,
    KerasMemWarning,
    ModelFileError,
    TargetError,
    shortened,
)
from kerasmem.records.regular import check_outside

_COMMANDS = (
    demo,
    inspect,
    estimate,
    tune,
    compress,
    convert,
    export,
    distill,
    evaluate,
    compare,
    runtimes,
    report,
    run,
)
_JSON = option(
    "--json", action="store_true", help="Write the result to stdout as JSON."
)
_DEFECT, _WRONG_INPUT, _GATE_NOT_MET = 1, 2, 3
_ROLES = ("model", "other", "teacher", "student")
"""Arguments that are input model files."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The result goes to stdout, all other output to stderr. Invalid input causes a
    one-line error, a defect of kerasmem a traceback.

    Args:
        arguments: Command line without the program name. Defaults to `sys.argv`.

    Returns:
        0 for success, 2 for invalid usage or input, 3 for a limit that was not met
        (`--max-drop`, `--target`). `kerasmem run` returns the exit code of the script.
    """
    options = build_parser().parse_args(arguments)
    stdout = sys.stdout
    try:
        # Output of Keras, backends and user modules must not mix with the result.
        with redirect_stdout(sys.stderr), _warnings_in_one_line():
            outcome = _run(options)
        if options.json:
            print(outcome.to_json(), file=stdout)
        else:
            outcome.print_tables(stdout)
        stdout.flush()
    except KeyboardInterrupt:
        return _fail("Interrupted. No partial file was left.")
    except TargetError as error:
        return _fail(str(error), _GATE_NOT_MET)
    except ChildDiedError as error:
        return _fail_of_child(error)
    except (KerasMemError, OSError) as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("The host does not have enough memory.")
    return outcome.exit_code


def build_parser() -> Parser:
    """Return the parser of the command line."""
    import importlib.metadata

    parser = Parser(
        prog="kerasmem",
        description="Show the memory of a Keras 3 model by layer, and compress the "
        "model.",
        epilog=EXIT_CODES_WITH_LIMIT,
    )
    version = importlib.metadata.version("kerasmem")
    parser.add_argument("--version", action="version", version=f"kerasmem {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for each in _COMMANDS:
        subparser = commands.add_parser(
            each.name,
            help=each.summary,
            description=each.summary,
            epilog=each.exit_codes,
        )
        subparser.add([_JSON, *each.options])
        subparser.set_defaults(command=each, imports=[])
    return parser


def _run(options: Namespace) -> CommandResult:
    run = options.command.run
    if not options.command.starts_keras:
        return run(options)
    # Check paths first, because TensorFlow takes seconds to start.
    _check_handed_in(options)
    start_keras()
    with _importable_from_here(options):
        objects = _imported_objects(options.imports)
        import keras

        with keras.saving.custom_object_scope(objects), _temporary_folder():
            return run(options)


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """Create all temporary files, also of child processes, in one folder.

    The next command removes the folder if this command is killed.
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


def _fail(message: str, code: int = _WRONG_INPUT) -> int:
    line = shortened(" ".join(message.split()))
    print(f"kerasmem: error: {line}", file=sys.stderr)
    return code


def _fail_of_child(error: ChildDiedError) -> int:
    # A child process is only started after Keras is imported.
    from kerasmem.backends.exhaustion import is_out_of_memory

    if is_out_of_memory(error):
        return _fail(str(error))
    print(error.stderr, file=sys.stderr)
    return _fail(str(error), _DEFECT)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings():
        default = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *rest: object
        ) -> None:
            if issubclass(category, KerasMemWarning):
                print(f"kerasmem: warning: {message}", file=sys.stderr)
            else:
                default(message, category, *rest)  # pyright: ignore[reportArgumentType]

        # No issue: the documentation of Python recommends this.
        warnings.showwarning = show  # pyright: ignore[reportAttributeAccessIssue]
        warnings.simplefilter("always", KerasMemWarning)
        yield


def _check_handed_in(options: Namespace) -> None:
    """Raise an error unless all model files exist and the output differs from them."""
    output: Path | None = vars(options).get("output")
    for model in (vars(options).get(role) for role in _ROLES):
        if model is None:
            continue
        if not os.path.lexists(model):
            raise ModelFileError(f"There is no file {model!r}.")
        if output is None:
            continue
        check_outside(output, model)
        if output.exists() and output.samefile(model):
            raise ConfigError(
                "The output is the input file, which is never modified. "
                f"Received: {model!r} and -o {str(output)!r}. Next: pass another "
                "name to -o."
            )


def start_keras() -> None:
    """Import Keras and the classes that kerasmem registers."""
    # TensorFlow reads the level only once, on import. 3 shows only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "keras" not in sys.modules:
        _import_keras()
    importlib.import_module("kerasmem.registered")


def _imported_objects(modules: Sequence[str]) -> dict[str, Any]:
    """Return the classes and functions defined in modules, by name."""
    objects: dict[str, Any] = {}
    for name in modules:
        try:
            objects |= _defined_in(importlib.import_module(name))
        except (Exception, SystemExit) as error:
            raise ConfigError(
                "Cannot import the module of --import: "
                f"{type(error).__name__}: {error}. Expected: a module in this folder "
                f"or installed. Received: {name!r}."
            ) from error
    return objects


def _defined_in(module: ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type | FunctionType)
        and value.__module__ == module.__name__
    }


def _import_keras() -> None:
    try:
        with _native_stderr_closed():
            importlib.import_module("keras")
    except Exception as error:
        missing = getattr(error, "name", None)
        packages = {name: f"kerasmem[{name}]" for name in BACKENDS}
        packages["tensorflow"] = "tensorflow"
        package = packages.get(missing or "")
        advice = f" Next: pip install {package}." if package else ""
        raise ConfigError(
            f"Keras cannot start: {type(error).__name__}: {error}. Expected: one of "
            f"{', '.join(BACKENDS)} installed. Received: KERAS_BACKEND="
            f"{os.environ.get('KERAS_BACKEND')!r}.{advice}"
        ) from error


@contextmanager
def _importable_from_here(options: Namespace) -> Iterator[None]:
    """Append the current folder to `sys.path` if an option names a module.

    The last position ensures that its files do not replace installed modules.
    """
    from kerasmem.files.data.source import is_function

    before = list(sys.path)
    if options.imports or is_function(vars(options).get("data")):
        sys.path.append(str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _native_stderr_closed() -> Iterator[None]:
    """Discard output of native libraries on stderr during an import.

    TensorFlow logs before it reads its log level, and it writes to the file descriptor,
    not to `sys.stderr`.
    """
    sys.stderr.flush()
    original, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(nowhere)
