"""Loads a Keras 2 file as a Keras 3 model."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import keras

from kerasmem.errors import KerasMemWarning, ModelFileError
from kerasmem.extras.legacy.file import Assignment, ConvertedLayer, LegacyFile, Named
from kerasmem.extras.legacy.flat import fill_by_layer, read_saved_model
from kerasmem.extras.legacy.graph import make
from kerasmem.extras.legacy.keras_archive import read_archive
from kerasmem.files.archive import DAMAGED
from kerasmem.files.datasets import attribute_text, bounded_weights, whole_array
from kerasmem.files.load import check_model_file, first_reason, say_without_loss
from kerasmem.graph.clone import objects_in_scope
from kerasmem.records.plain import read_json


def load_legacy(
    path: Path,
    custom_objects: Mapping[str, Any],
    *,
    compile: bool,  # noqa: A002 - as in Keras
) -> ConvertedLayer:
    """Convert a Keras 2 file. Returns the model and its stored description.

    Raises:
        ModelFileError: If the conversion fails, with the layer and the reason.
    """
    with bounded_weights(path):
        model, training = _converted(path, custom_objects)
    if model.is_rounded:
        warnings.warn(
            f"{str(path)!r} is from quantization-aware training. Its weights were "
            'loaded without rounding. Next: km.Quantize("int8-static").',
            KerasMemWarning,
            stacklevel=3,
        )
    if training is not None and compile:
        try:
            model.layer.compile(**compile_arguments(training, custom_objects))
        except Exception as error:  # noqa: BLE001 - such as an unknown loss
            say_without_loss(path, first_reason(error))
    return model


def load_converted(path: str | Path) -> ConvertedLayer:
    """Convert a Keras 2 file. Returns the model and its stored description.

    Raises:
        ModelFileError: If `kerasmem.load_model` cannot load the file, or Keras 3 wrote
            it.
    """
    path = Path(path)
    if not check_model_file(path):
        raise ModelFileError(
            f"Keras 3 wrote {str(path)!r}, so no conversion is needed."
        )
    return load_legacy(path, {}, compile=True)


def _converted(
    path: Path, custom_objects: Mapping[str, Any]
) -> tuple[ConvertedLayer, dict[str, Any] | None]:
    try:
        file = _read(path)
        model = make(file.config, custom_objects)
        if not isinstance(model.layer, keras.Model):
            raise ModelFileError("The file contains no model.")
        assignment = Assignment()
        file.fill(model, assignment)
        assignment.check_complete(model.layer)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} could not be loaded: {error}") from error
    return model, file.training


def _read(path: Path) -> LegacyFile:
    if path.is_dir():
        return read_saved_model(path)
    return read_archive(path) if path.suffix == ".keras" else read_h5(path)


def read_h5(path: Path) -> LegacyFile:
    """Read an `.h5` file.

    Raises:
        ModelFileError: If the file contains only weights or is incomplete.
    """
    with h5py.File(path) as file:
        config = file.attrs.get("model_config")
        if config is None or "model_weights" not in file:
            raise ModelFileError(
                f"{str(path)!r} does not contain a complete model, perhaps only "
                "weights. Expected: a file written by model.save."
            )
        training = file.attrs.get("training_config")
        group = file["model_weights"]
        names = _texts(group, "layer_names")
        layers = {name: _arrays(group[name]) for name in names}
    return LegacyFile(
        read_json(attribute_text(config)),
        None if training is None else read_json(attribute_text(training)),
        partial(fill_by_layer, layers),
    )


def _arrays(group: Any) -> list[Named]:
    names = _texts(group, "weight_names")
    return [(name, whole_array(group[name], group.file)) for name in names]


def _texts(group: Any, name: str) -> list[str]:
    if name in group.attrs:
        return [attribute_text(value) for value in group.attrs[name]]
    names: list[str] = []
    while f"{name}{len(names)}" in group.attrs:
        names.append(f"{name}{len(names)}")
    return [attribute_text(value) for part in names for value in group.attrs[part]]


Config = dict[str, Any]

_SHORT_NAMES = ("accuracy", "acc")
_OF_KERAS_2 = ("fn", "is_legacy_optimizer", "jit_compile", "dtype")
_LOSS_SCALE = ("LossScaleOptimizer", "LossScaleOptimizerV3")


def compile_arguments(
    training: Mapping[str, Any], custom_objects: Mapping[str, Any]
) -> Config:
    """Return the arguments for `compile`. The optimizer state is not restored.

    Raises:
        ValueError: If Keras 3 has no such loss, metric or optimizer.
    """
    optimizer = training.get("optimizer") or training.get("optimizer_config")
    with keras.saving.custom_object_scope({**objects_in_scope(), **custom_objects}):
        return {
            "optimizer": _one(optimizer, keras.optimizers.get),
            "loss": _all(training.get("loss"), keras.losses.get),
            "metrics": _metrics(training.get("metrics")),
            "loss_weights": training.get("loss_weights"),
            "weighted_metrics": _metrics(training.get("weighted_metrics")),
        }


def _metrics(metrics: Any) -> Any:
    # Models with one output store a nested list.
    if isinstance(metrics, list) and len(metrics) == 1 and isinstance(metrics[0], list):
        metrics = metrics[0]
    return _all(metrics, keras.metrics.get)


def _all(structure: Any, get: Callable[[Any], Any]) -> Any:
    if isinstance(structure, dict) and "class_name" not in structure:
        return {key: _all(value, get) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_all(value, get) for value in structure]
    return _one(structure, get)


def _one(description: Any, get: Callable[[Any], Any]) -> Any:
    if not isinstance(description, dict):
        return description
    name = description["class_name"].rpartition(">")[2]
    config = description.get("config")
    if not isinstance(config, dict):  # a function
        return config if config is not None else name
    config = dict(config)
    if name == "MeanMetricWrapper":
        # For a short name, Keras chooses the metric from the output shapes.
        short = config.get("name") in _SHORT_NAMES
        return config["name"] if short else config.get("fn", config["name"])
    if name in _LOSS_SCALE:
        inner = _one(config.pop("inner_optimizer"), get)
        keras_class = keras.optimizers.LossScaleOptimizer
        return keras_class(inner, **_known(keras_class, config))
    keras_class = get(name)
    keras_class = keras_class if isinstance(keras_class, type) else type(keras_class)
    return keras_class(**_known(keras_class, config))


def _known(keras_class: type, config: Config) -> Config:
    config = {k: v for k, v in config.items() if k not in _OF_KERAS_2}
    if config.get("reduction") == "auto":  # the default of Keras 3
        del config["reduction"]
    rate, decay = config.get("learning_rate"), config.pop("decay", 0)
    if isinstance(rate, dict):
        schedule = getattr(keras.optimizers.schedules, rate["class_name"])
        config["learning_rate"] = schedule.from_config(rate["config"])
    elif decay:
        config["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(
            rate, decay_steps=1, decay_rate=decay
        )
    parameters = inspect.signature(keras_class.__init__).parameters
    takes_all = "kwargs" in parameters
    return {k: v for k, v in config.items() if takes_all or k in parameters}
