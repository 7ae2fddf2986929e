"""A model to look at, not to run: its weights stay in the file."""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kerasmem.backends import current
from kerasmem.errors import ModelFileError
from kerasmem.files.archive import is_weights_alone
from kerasmem.files.keras_2 import is_legacy
from kerasmem.files.load import (
    check_model_file,
    load_model,
    loading,
    made_whole,
    model_of,
    say_without_loss,
)
from kerasmem.files.memory_map import MappedWeights
from kerasmem.files.preset import is_preset, weights_of


@contextmanager
def described_model(
    path: str | Path,
    custom_objects: dict[str, Any] | None = None,
    *,
    compile: bool = True,  # noqa: A002 - as in Keras
) -> Iterator[Any]:
    """Give the model in a file to look at, not to run, within the scope.

    Its weights stay in the file where that is a `.keras` file of Keras 3. Of a preset
    it is the backbone. Any other, and one whose layers want their values while they are
    loaded, is loaded whole.

    Args:
        path: as for `load_model`.
        custom_objects: the user's own layers and functions by name.
        compile: False to leave loss, metrics and optimizer out.

    Raises:
        ModelFileError: as by `load_model`.
    """
    path = Path(path)
    if is_preset(path):
        path = weights_of(path)
    if is_weights_alone(path):
        with (
            made_whole(path, Path(tempfile.gettempdir())) as whole,
            described_model(whole, custom_objects, compile=compile) as model,
        ):
            yield model
        return
    if not can_be_described(path):
        yield load_model(path, custom_objects, compile=compile)
        return
    with ExitStack() as scope:
        model = _described(path, custom_objects or {}, scope, compile=compile)
        if model is None:  # a layer wants its weights, or something is wrong with it
            model = load_model(path, custom_objects, compile=compile)
        yield model


def _described(
    path: Path,
    custom_objects: dict[str, Any],
    scope: ExitStack,
    *,
    compile: bool,  # noqa: A002 - as in Keras
) -> Any | None:
    try:
        with ExitStack() as trial:
            mapped = MappedWeights(path, described=True)
            file, objects = trial.enter_context(mapped.skeleton())
            known = {**objects, **custom_objects}
            with loading(path):
                model, why = model_of(path, file, known, compile=compile)
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
    check_model_file(path, memory_map=True)
    return not is_legacy(path) and current().lazy_values().why_not() is None
