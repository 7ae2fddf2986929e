"""What is done with a file: the functions and the commands that open one."""

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from kerasmem.errors import KerasMemError
from tests.fuzz.files.bases import COLUMNS
from tests.fuzz.outcome import Outcome, line_of


def _loaded(path: Path) -> None:
    import kerasmem as km

    km.load_model(path)


def _mapped(path: Path) -> None:
    import kerasmem as km

    km.load_model(path, memory_map=True)


def _recipe(path: Path) -> None:
    from kerasmem.compression.recipe import read_recipe

    for step in read_recipe(path):
        step.to_json()


def _samples(path: Path) -> None:
    from kerasmem.files.data.source import load_data

    load_data(path)


def _mapped_samples(path: Path) -> None:
    from kerasmem.files.data.source import load_data

    load_data(path, mapped=True)


def _cache(path: Path) -> None:
    from kerasmem.compression.distill.cache import AnswerStore, Column

    store = AnswerStore(path, "teacher", [Column(*c) for c in COLUMNS])
    if store.rows:
        _ = [array[list(store.rows.values())].sum() for array in store.arrays()]


def _command(*arguments: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from kerasmem.cli.main import main

        given = [str(path) if word == "FILE" else word for word in arguments]
        sys.argv = ["kerasmem", *given]
        with (
            Path("stderr.txt").open("w") as stderr,
            redirect_stdout(stderr),
            redirect_stderr(stderr),
        ):
            code = main(given)
        lines = Path("stderr.txt").read_text().splitlines()
        errors = [line for line in lines if line.startswith("kerasmem: error:")]
        if (code, len(errors)) not in ((0, 0), (2, 1)):
            raise RuntimeError(f"exit code {code}, {len(errors)} errors: {lines[-3:]}")
        if code:
            raise KerasMemError(errors[0])

    return read


READERS: dict[str, Callable[[Path], None]] = {
    "load": _loaded,
    "map": _mapped,
    "inspect": _command("inspect", "FILE"),
    "estimate": _command(
        "estimate", "FILE", "--batch-size", "2", "--optimizer", "adam", "--json"
    ),
    "convert": _command("convert", "FILE", "-o", "out.keras", "--no-compare"),
    "recipe": _recipe,
    "samples": _samples,
    "mapped samples": _mapped_samples,
    "cache": _cache,
    "report": _command("report", "FILE", "-o", "out.html"),
}


def readers_of(name: str) -> tuple[str, ...]:
    """Return the readers that a base is for."""
    for begin, readers in (
        ("old_", ("load", "convert", "inspect")),
        ("saved_", ("load", "convert")),
        ("stored", ("map", "load")),
        ("recipe", ("recipe",)),
        ("data", ("samples", "mapped samples")),
        ("packed", ("samples",)),
        ("cache", ("cache",)),
        ("run", ("report",)),
    ):
        if name.startswith(begin):
            return readers
    return ("load", "load", "inspect", "estimate")


def outcome_of(reader: str, path: Path) -> Outcome:
    """Return what became of reading a file."""
    try:
        READERS[reader](path)
    except KerasMemError as error:
        return Outcome("refused", f"{reader}: {' '.join(str(error).split())}"[:2000])
    except BaseException as error:  # noqa: BLE001 - this is what is looked for
        place = line_of(error)
        text = f"{reader}: {type(error).__name__} at {place}: {str(error)[:300]}"
        return Outcome("exception", text)
    return Outcome("ok", reader)
