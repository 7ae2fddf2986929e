"""Keras, loaded late and without the noise that its backends make when they start."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kerasmem.errors import ConfigError


def start_keras(modules: Sequence[str]) -> None:
    """Import Keras, our own layers, and the user's modules with theirs.

    Args:
        modules: names of modules to import for the custom objects that they register.

    Raises:
        ConfigError: if there is no such module.
    """
    # TensorFlow reads this once, when it is imported: errors only.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "keras" not in sys.modules:
        with _native_stderr_closed():
            importlib.import_module("keras")
    importlib.import_module("kerasmem.compression.quantize")
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"Cannot import the module of --import: {error}. Expected: a module in "
                f"this folder or installed. Received: {name!r}."
            ) from error


@contextmanager
def importable_from_here() -> Iterator[None]:
    """Let modules in the current folder be imported, as `python -m` does."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _native_stderr_closed() -> Iterator[None]:
    """Drop what native libraries write to stderr while they are loaded.

    TensorFlow logs a page before it reads its own log level, and `sys.stderr` does not
    see it: only the file descriptor does.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
