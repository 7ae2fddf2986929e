"""Loads saved models, with one-line errors."""

import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import keras

from kerasmem.backends.patching import patch_method
from kerasmem.errors import (
    KerasMemError,
    KerasMemWarning,
    ModelFileError,
    OutputError,
    first_line,
    text_of,
    without_config,
)
from kerasmem.files.archive import (
    CONFIG,
    DAMAGED,
    Weights,
    check_archive,
    damage,
    is_weights_alone,
)
from kerasmem.files.atomic import replacing
from kerasmem.files.contents import optimizer_state
from kerasmem.files.datasets import (
    attribute_text,
    bounded_weights,
    check_declared,
    check_heaps,
)
from kerasmem.files.plain import made_whole
from kerasmem.files.preset import TASK, is_preset, load_task, weight_files, weights_of
from kerasmem.files.skeleton import mapped_weights, streamed_weights
from kerasmem.graph.full_configs import keep_omitted
from kerasmem.graph.layers import sublayers
from kerasmem.graph.saving import cached_skip_sets
from kerasmem.optional import feature
from kerasmem.records.plain import read_json
from kerasmem.types import Model, Tensor


def load_model(
    path: str | Path,
    custom_objects: dict[str, Any] | None = None,
    *,
    compile: bool = True,  # noqa: A002 - as in Keras
    memory_map: bool = False,
) -> Any:
    """Loads a model from a `.keras` or `.h5` file, a SavedModel or a KerasHub preset.

    For a preset directory written by `save_to_preset`, returns the task with its
    tokenizer, or the backbone if there is no task.

    Weights files (`.weights.h5`, or `.weights.json` with shards) need a `config.json`
    in the same directory, as in an unzipped `.keras` file.

    Code in the file is never executed (`safe_mode` is always on). If the loss or the
    metrics cannot be restored, a warning is issued and the model is loaded without
    them. Models of Keras 2 (tf_keras, `tf.keras` up to TensorFlow 2.15), with or
    without tfmot wrappers, are converted to Keras 3. Their optimizer is reset.

    Args:
        path: Path of the file or directory.
        custom_objects: Custom layers and functions by name. Defaults to `None`.
        compile: Whether to restore the loss, the metrics and the optimizer. Defaults to
            `True`.
        memory_map: Whether to leave the weights in the file until a layer needs them.
            The file must not change while the model is in use. The weights must be
            uncompressed, as written by `km.save_model(..., coding="stored")` or by
            Keras. Their checksum is not compared, and the optimizer is reset. Defaults
            to `False`.

    Returns:
        The `keras.Model`, compiled if the file has a compile config and `compile` is
        `True`.

    Raises:
        ModelFileError: If the file is missing, damaged or no model. Also if a layer is
            unknown or not supported by Keras 3, or the weights cannot be mapped.
        ConfigError: If `memory_map` is not supported in this environment, such as with
            a `tf.distribute` strategy or NNX.

    Example:
        >>> import kerasmem as km
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     km.save_model(model, Path(folder, "model.keras"))
        ...     km.load_model(Path(folder, "model.keras")).count_params()
        10
    """
    path, objects = Path(path), custom_objects or {}
    if memory_map:
        return _mapped_model(path, objects, compile=compile)
    if path.is_dir() and is_preset(path):
        weight_files(path)
        if (path / TASK).is_file():
            with loading(path), bounded_weights(path):
                task = load_task(path, objects, compiled=compile)
            keep_omitted(sublayers(task))
            return task
        path = weights_of(path)
    if path.suffix != ".keras" and is_weights_alone(path):
        with made_whole(path, Path(tempfile.gettempdir())) as whole:
            return load_model(whole, objects, compile=compile)
    if check_model_file(path):
        return feature("load_legacy")(path, objects, compile=compile).layer
    with loading(path), streamed_weights(path) as (file, own_objects):
        model, why = model_of(path, file, {**own_objects, **objects}, compile=compile)
    if why is not None:
        say_without_loss(path, why)
    return model


def _mapped_model(
    path: Path,
    objects: dict[str, Any],
    *,
    compile: bool,  # noqa: A002 - as in Keras
) -> Any:
    is_other = path.is_dir() or (path.is_file() and path.suffix != ".keras")
    if is_other or check_model_file(path, weights="none"):
        raise ModelFileError(
            "Expected a .keras file of Keras 3 for memory_map=True. Received: "
            f"path={str(path)!r}. Next: km.save_model(km.load_model(path), "
            "'model.keras', coding='stored')."
        )
    with mapped_weights(path) as (file, own_objects), loading(path):
        state = optimizer_state(path) if compile else None
        objects = {**own_objects, **objects}
        model, why = model_of(path, file, objects, compile=compile, slots=False)
    if state is not None and state.entries and not state.is_fresh:
        warnings.warn(
            f"The optimizer of {str(path)!r} is reset: its state is never mapped.",
            KerasMemWarning,
            stacklevel=3,
        )
    if why is not None:
        say_without_loss(path, why)
    save_beside(model, path.stat())
    return model


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Converts any exception in its scope to a one-line `ModelFileError`."""
    try:
        yield
    except Exception as error:
        reason, file = first_reason(error), repr(str(path))
        if not reason.startswith(file):
            reason = f"{file} could not be loaded: {reason}"
        if "keras_hub" in reason and find_spec("keras_hub") is None:
            reason += " Next: pip install keras-hub."
        raise ModelFileError(reason) from error


def model_of(
    path: Path,
    file: Path,
    objects: dict[str, Any],
    *,
    compile: bool,  # noqa: A002 - as in Keras
    slots: bool = True,
) -> tuple[Any, str | None]:
    """Returns the model of a file, and the reason if its loss could not be restored.

    Keras reads `file` in place of `path`. Without `slots`, the optimizer is not built:
    on TensorFlow, its slots need the value of every weight.
    """
    model, why = None, None
    if compile:
        try:
            model = _load(path, file, objects, with_loss=True, slots=slots)
        except Exception as error:  # noqa: BLE001 - any error of a damaged file
            # The traceback of the error would keep the model in memory.
            why = first_reason(error)
    if model is None:
        model = _load(path, file, objects, with_loss=False)
    keep_omitted(sublayers(model))
    if getattr(model, "optimizer", None) is None:
        model.compiled = False  # Keras sets True even if a custom `compile` did not run
    return model, why


def say_without_loss(path: Path, why: str) -> None:
    """Warns the caller of `load_model`, two frames above the caller."""
    warnings.warn(
        f"{str(path)!r} was loaded without its loss and metrics: {why}",
        KerasMemWarning,
        stacklevel=4,
    )


def _load(
    path: Path,
    file: Path,
    objects: dict[str, Any],
    *,
    with_loss: bool,
    slots: bool = True,
) -> Any:
    with warnings.catch_warnings(), bounded_weights(path), cached_skip_sets():
        # A missing optimizer state is expected.
        warnings.filterwarnings("ignore", message="Skipping variable loading for opt")
        model = keras.models.load_model(
            file, custom_objects=objects, compile=with_loss and slots, safe_mode=True
        )
    if not isinstance(model, keras.Model):
        raise ModelFileError(
            f"it contains a {type(model).__name__}. Expected: a keras.Model."
        )
    if with_loss and not slots:
        with keras.saving.custom_object_scope(objects):
            _compile(model, file)
    return model


def _compile(model: Model, file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        config = read_json(archive.read(CONFIG)).get("compile_config")
    if not config:  # the model was not compiled
        return
    if type(model).compile is not keras.Model.compile:
        model.compile_from_config(config)
        return
    model.compile(**keras.saving.deserialize_keras_object(config, safe_mode=True))


def check_model_file(path: Path, weights: Weights = "stored") -> bool:
    """Raises `ModelFileError` if a file or directory is missing or damaged.

    Returns `True` for a file written by Keras 2 or a SavedModel directory.
    """
    if not (path.is_file() or path.is_dir()):
        raise ModelFileError(f"There is no file {str(path)!r}.")
    if path.is_dir():
        if (path / "saved_model.pb").exists():
            return True
        raise ModelFileError(
            f"{str(path)!r} is a folder. Expected a model file, .keras or .h5, or "
            "the folder of a SavedModel, or of a preset of KerasHub with its "
            "config.json."
        )
    if path.suffix == ".keras":
        version = check_archive(path, weights)
    elif path.suffix in (".h5", ".hdf5"):
        version = _checked_h5(path)
    else:
        raise ModelFileError(
            "Expected a model file that ends in .keras or .h5. Received: "
            f"path={str(path)!r}."
        )
    return version.startswith(("1.", "2."))


def _checked_h5(path: Path) -> str:
    if not h5py.is_hdf5(path):
        raise ModelFileError(f"{str(path)!r} is no HDF5 file.")
    check_heaps(path)
    try:
        with h5py.File(path, "r") as weights:
            check_declared(path, weights)
            return attribute_text(weights.attrs.get("keras_version", "2."))
    except ModelFileError:
        raise
    except DAMAGED as error:
        raise damage(path, error) from error


def first_reason(error: Exception) -> str:
    """Returns the relevant line of a Keras error."""
    text = text_of(error)
    if isinstance(error, KerasMemError):
        return text
    unknown = text.rpartition("Could not locate ")[2].partition(".")[0]
    if "Could not locate " in text:
        return (
            f"the {unknown} is unknown. Next: import the module that defines it with "
            "--import, or pass custom_objects= in Python."
        )
    if "Python lambda" in text:
        return (
            "it contains a Python lambda, and code in a file is never executed. Next: "
            "use a named function and save the model again."
        )
    if "Example error message" in text:  # the message follows an empty line
        return text.split("\n\n")[1]
    # Keras wraps the error in the config of each enclosing layer.
    parts = reversed(text.split("Exception encountered: "))
    first = next(filter(None, map(first_line, parts)), "")
    return f"{type(error).__name__}: {without_config(first)}".rstrip(": ")


def save_beside(model: Model, file: os.stat_result) -> None:
    """Makes `model.save` replace the mapped file atomically.

    Keras would truncate the file first. The mapped weights would be lost, and the
    process would crash.
    """

    def save_safely(
        save: Callable[..., None], filepath: Any, *overwrite: bool, **options: Any
    ) -> None:
        if not _is_it(filepath, file):
            save(filepath, *overwrite, **options)
            return
        if False in (*overwrite, options.get("overwrite")):
            raise OutputError(f"The weights of the model lie in {str(filepath)!r}.")
        with replacing(filepath) as new_file:
            save(new_file, *overwrite, **options)

    # No issue known: Keras 3.15 truncates the file before reading the weights.
    patch_method(model, "save", save_safely)


def _is_it(path: Any, file: os.stat_result) -> bool:
    if not (isinstance(path, str | os.PathLike) and Path(path).exists()):
        return False
    return os.path.samestat(Path(path).stat(), file)


@keras.saving.register_keras_serializable("kerasmem")
def hard_sigmoid_of_keras_2(x: Tensor) -> Any:
    """Returns `clip(0.2 * x + 0.5, 0, 1)`, the hard sigmoid of Keras 2.

    The slope in Keras 3 is 1/6. Converted models refer to this function when they are
    loaded without the legacy module.
    """
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)
