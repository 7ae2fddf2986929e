"""Keras, loaded late and without the noise that its backends make when they start."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from kerasmem.errors import ConfigError


def start_keras(modules: Sequence[str]) -> dict[str, Any]:
    """Import Keras and what we register with it; return the user's, from their modules.

    Args:
        modules: names of modules to import for their custom objects, registered with
            Keras or not.

    Returns:
        The classes and functions that the modules define, by name.

    Raises:
        ConfigError: if Keras cannot start on the backend that is set, or a module
            cannot be imported, whatever it raises.
    """
    # TensorFlow reads this once, when it is imported: errors only.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "keras" not in sys.modules:
        _import_keras()
    importlib.import_module("kerasmem.compression.quantize.layer")
    importlib.import_module("kerasmem.compression.quantize.static")
    importlib.import_module("kerasmem.optimizers")
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
        packages = {"tensorflow": "tensorflow"}
        packages |= {name: f"kerasmem[{name}]" for name in ("jax", "torch")}
        package = packages.get(missing or "")
        advice = f" Next: pip install {package}." if package else ""
        raise ConfigError(
            f"Keras cannot start: {type(error).__name__}: {error}. Expected: the "
            "backend tensorflow, jax or torch, installed. Received: KERAS_BACKEND="
            f"{os.environ.get('KERAS_BACKEND')!r}.{advice}"
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
