"""Models for inspection, whose weights stay in the file."""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kerasmem.backends import current
from kerasmem.backends.at_rest import offloaded
from kerasmem.backends.lazy import lazy_variables
from kerasmem.errors import ModelFileError
from kerasmem.files.archive import (
    CONFIG,
    is_weights_alone,
    shards_of,
)
from kerasmem.files.datasets import bounded_weights
from kerasmem.files.load import (
    check_model_file,
    load_model,
    loading,
    model_of,
    say_without_loss,
)
from kerasmem.files.plain import check_has_model, made_whole
from kerasmem.files.preset import is_preset, made_of_configs, weights_of
from kerasmem.files.skeleton import described_weights, is_mappable, mapped_weights
from kerasmem.records.regular import unchanged


@contextmanager
def described_model(
    path: str | Path, custom_objects: dict[str, Any] | None = None
) -> Iterator[Any]:
    """Context manager that yields a model for inspection only. See `load_model`.

    The weights of a Keras 3 `.keras` file stay in the file. For a preset, yields the
    backbone. Other models, and models whose layers read their weights while loading,
    are loaded completely.
    """
    path = weights_of(Path(path)) if is_preset(path) else Path(path)
    with ExitStack() as scope:
        if is_weights_alone(path):
            path = scope.enter_context(made_whole(path, Path(tempfile.gettempdir())))
        model = None
        if can_be_described(path):
            model = _described(path, custom_objects or {}, scope)
        if model is None:  # a layer reads its weights, or the file is damaged
            model = load_model(path, custom_objects)
        yield model


@contextmanager
def described_preset(folder: Path) -> Iterator[Any]:
    """Context manager that yields the model of a preset without weights.

    Yields the task if there is one, otherwise the backbone. Weight files are not
    needed.
    """
    with without_values():
        with loading(folder), bounded_weights(folder, layers_alone=True):
            model = made_of_configs(folder)
        yield model


@contextmanager
def without_values() -> Iterator[None]:
    """Context manager in which variables have a shape and a type but no value."""
    values = current().lazy_values()
    with ExitStack() as scope:
        if values.why_not() is None:
            scope.enter_context(lazy_variables(values, described=True, blank=True))
        yield


@contextmanager
def offloaded_model(
    path: Path, custom_objects: dict[str, Any] | None, folder: Path
) -> Iterator[Any]:
    """Context manager that yields a model for computation with weights on disk.

    Weights are passed to each layer on access. Assigned values of variables, including
    variables of models created in the scope, are written to an unnamed file. `folder`
    needs space for a copy of the file and the assigned values.

    Raises `ModelFileError` like `load_model`, or if the file changes within the scope.
    """
    values = current().lazy_values()
    with _plain(path, folder) as plain, offloaded(values, folder) as files:
        with mapped_weights(plain, files) as (file, own_objects), loading(path):
            objects = {**own_objects, **(custom_objects or {})}
            model, why = model_of(plain, file, objects, compile=True, slots=False)
        if why is not None:
            say_without_loss(path, why)
        with lazy_variables(values, at_rest=files, assigned=False):
            yield model


@contextmanager
def _plain(path: Path, folder: Path) -> Iterator[Path]:
    """Yields a file with uncompressed weights: `path` or a copy in `folder`."""
    is_alone = is_weights_alone(path)
    if is_alone:
        check_has_model(path)
        files = {path, path.with_name(CONFIG), *shards_of(path)}
    else:
        check_model_file(path)
        files = {path}
    with unchanged(files), ExitStack() as scope:
        if is_alone or not is_mappable(path):
            path = scope.enter_context(made_whole(path, folder))
        yield path


def _described(path: Path, objects: dict[str, Any], scope: ExitStack) -> Any | None:
    try:
        with ExitStack() as trial, loading(path):
            file, all_objects = trial.enter_context(described_weights(path))
            all_objects |= objects
            model, why = model_of(path, file, all_objects, compile=True, slots=False)
            scope.push(trial.pop_all())
    except ModelFileError:
        return None
    if why is not None:
        say_without_loss(path, why)
    return model


def can_be_described(path: Path) -> bool:
    """Returns whether the model in a file can be loaded without weight values."""
    if path.suffix != ".keras" or not path.is_file() or not zipfile.is_zipfile(path):
        return False
    is_legacy = check_model_file(path, weights="none")
    return not is_legacy and current().lazy_values().why_not() is None
