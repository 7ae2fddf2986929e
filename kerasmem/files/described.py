"""A model to look at, not to run: its weights stay in the file."""

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
    """Give the model in a file to look at, not to run, within the scope.

    Its weights stay in the file where that is a `.keras` file of Keras 3. Of a preset
    it is the backbone. Any other, and one whose layers want their values while they are
    loaded, is loaded whole.

    Args:
        path: as for `load_model`.
        custom_objects: the user's own layers and functions by name.

    Raises:
        ModelFileError: as by `load_model`.
    """
    path = weights_of(Path(path)) if is_preset(path) else Path(path)
    with ExitStack() as scope:
        if is_weights_alone(path):
            path = scope.enter_context(made_whole(path, Path(tempfile.gettempdir())))
        model = None
        if can_be_described(path):
            model = _described(path, custom_objects or {}, scope)
        if model is None:  # a layer wants its weights, or something is wrong with it
            model = load_model(path, custom_objects)
        yield model


@contextmanager
def described_preset(folder: Path) -> Iterator[Any]:
    """Give the model that the configs of a preset tell of, without any weight.

    It is the task if there is one, else the backbone.

    Args:
        folder: the preset, which need not have files with weights.

    Raises:
        ModelFileError: if no model can be made of them.
    """
    with without_values():
        with loading(folder), bounded_weights(folder, layers_alone=True):
            model = made_of_configs(folder)
        yield model


@contextmanager
def without_values() -> Iterator[None]:
    """Return a scope in which variables are made that have a shape and a type alone."""
    values = current().lazy_values()
    with ExitStack() as scope:
        if values.why_not() is None:
            scope.enter_context(lazy_variables(values, described=True, blank=True))
        yield


@contextmanager
def offloaded_model(
    path: Path, custom_objects: dict[str, Any] | None, folder: Path
) -> Iterator[Any]:
    """Give the model in a file to compute with, its weights in files within the scope.

    Each layer is lent the weights that it asks for. What its variables, and those of
    models that are made in the scope, are assigned goes to a file without a name.

    Args:
        path: a `.keras` file, or weights beside the config of their model.
        custom_objects: the user's own layers and functions by name.
        folder: with room for a copy of the file, and for what is assigned.

    Raises:
        ModelFileError: as by `load_model`, or if the file changes within the scope.
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
    """Give a file whose weights lie in it as they are: another one if they do not.

    Args:
        path: a `.keras` file, or weights beside the config of their model.
        folder: where to put another one.

    Raises:
        ModelFileError: if it cannot be read, or changes within the scope.
    """
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
    """Return whether there may be a model in a file that needs no value of a weight.

    Raises:
        ModelFileError: if the file is damaged.
    """
    if path.suffix != ".keras" or not path.is_file() or not zipfile.is_zipfile(path):
        return False
    is_legacy = check_model_file(path, weights="none")
    return not is_legacy and current().lazy_values().why_not() is None
