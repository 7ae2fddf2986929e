"""A preset of KerasHub: a folder with a config, weights, and what a task has besides.

`config.json` and `model.weights.h5`, or the shards of `model.weights.json`, are those
of the backbone. A task has its own in `task.json` and `task.weights.h5`; a tokenizer or
an image converter has a config and its assets. Where the backbone has weights in fewer
bits, `config.json` tells of the float one, whose class KerasHub looks for there, and
tells under `QUANTIZED` what is to be made instead; `task.json` has that in place of it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras

from kerasmem.errors import ConfigError, InputError, ModelFileError
from kerasmem.files.archive import CONFIG, DAMAGED, WEIGHTS, shards_of
from kerasmem.files.datasets import check_declared, check_heaps
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.records.regular import check_links, check_parent, read_regular
from kerasmem.types import Model

TASK, SHARDED = "task.json", "model.weights.json"
TASK_WEIGHTS = "task.weights.h5"
QUANTIZED = "kerasmem_quantized"

_FLOAT, _LAYER = "kerasmem>QuantizedLayer", "layer"


def is_preset(path: Any) -> bool:
    """Return whether a path is that of a folder with the config of a Keras model."""
    if not isinstance(path, str | Path):
        return False
    folder = Path(path)
    is_saved_model = (folder / "saved_model.pb").exists()
    return not is_saved_model and any((folder / name).is_file() for name in _TOLD_BY)


_TOLD_BY = (CONFIG, TASK, WEIGHTS, SHARDED)


def weights_of(folder: Path) -> Path:
    """Return the file with the weights of a preset's backbone.

    Raises:
        ModelFileError: if there is none, or no config.
    """
    if not (folder / CONFIG).is_file():
        raise ModelFileError(
            f"The preset {str(folder)!r} is not complete: it has no {CONFIG}."
        )
    for name in (WEIGHTS, SHARDED):
        if (folder / name).is_file():
            return folder / name
    raise ModelFileError(
        f"The preset {str(folder)!r} is not complete: it has neither {WEIGHTS} nor "
        f"{SHARDED}. Expected: what `save_to_preset` of KerasHub wrote."
    )


def weight_files(folder: Path) -> list[Path]:
    """Return all files with weights of a preset, none of them damaged.

    Raises:
        ModelFileError: if one is, or is missing, or a link leads out of the preset.
    """
    check_links(folder, folder.rglob("*"))
    task = folder / TASK_WEIGHTS
    index = weights_of(folder)
    files = [*shards_of(index), *([task] if task.is_file() else [])]
    for file in files:
        check_heaps(file)
        try:
            with h5py.File(file, "r") as weights:
                check_declared(file, weights)
        except DAMAGED as error:
            raise ModelFileError(f"{str(file)!r} is damaged: {error}") from error
    return [*dict.fromkeys([index, *files])]


def config_of(file: Path) -> dict[str, Any]:
    """Return what a JSON file of a preset says.

    Raises:
        ModelFileError: if it is no object of JSON, or that of no Keras model.
    """
    try:
        content = read_json(read_regular(file, MOST_BYTES, follow_link=True))
        if not isinstance(content, dict):
            raise InputError("it is no object.")
    except InputError as error:
        text = f"The config {str(file)!r} is damaged: {error}"
        raise ModelFileError(text) from error
    if not isinstance(content.get("config"), dict):
        raise ModelFileError(
            f"{str(file)!r} is no config of a Keras model. Expected: what "
            "`save_to_preset` of KerasHub wrote. A checkpoint of another library has "
            "to be loaded by KerasHub's `from_preset`, and saved, first."
        )
    return content


def backbone_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the backbone that a preset's weights are those of."""
    quantized_config = config.get(QUANTIZED)
    return config if quantized_config is None else quantized_config


def load_task(folder: Path, objects: Mapping[str, Any], *, compiled: bool) -> Any:
    """Return the task of a preset that has one, with its tokenizer.

    Args:
        folder: the preset.
        objects: custom objects by name.
        compiled: False to leave loss, metrics and optimizer out.
    """
    weights = weights_of(folder)
    config = config_of(folder / TASK)
    config["config"] |= {} if compiled else {"compile": False}
    task = _deserialized(config, objects)
    backbone: Any = getattr(task, "backbone", None)
    if not (isinstance(task, keras.Model) and isinstance(backbone, keras.Model)):
        raise ModelFileError(
            f"{TASK} holds a {type(task).__name__}. Expected: a task of KerasHub."
        )
    if (folder / TASK_WEIGHTS).is_file():
        task.load_task_weights(str(folder / TASK_WEIGHTS))
    backbone.load_weights(str(weights))
    if task.preprocessor is not None:
        task.preprocessor.load_preset_assets(str(folder))
    return task


def made_of_configs(folder: Path) -> keras.Model:
    """Return the task of a preset, or its backbone, before weights are loaded.

    Args:
        folder: the preset, which need not have files with weights.

    Raises:
        ModelFileError: if a config is damaged, or that of something else.
    """
    has_task = (folder / TASK).is_file()
    file = folder / (TASK if has_task else CONFIG)
    model = _deserialized(backbone_config(config_of(file)), {})
    if not isinstance(model, keras.Model):
        raise ModelFileError(
            f"{file.name} holds a {type(model).__name__}. Expected: a model of "
            "KerasHub."
        )
    return model


def _deserialized(config: Mapping[str, Any], objects: Mapping[str, Any]) -> Any:
    return keras.saving.deserialize_keras_object(
        config, custom_objects=dict(objects), safe_mode=True
    )


def check_new_folder(path: Path) -> None:
    """Raise unless a folder can be made at `path`.

    Raises:
        ConfigError: if there is something, or nowhere to make it in.
    """
    check_parent(path)
    if path.is_symlink() or path.exists():
        if path.is_dir() and not any(path.iterdir()):
            return
        raise ConfigError(
            "The output of a preset is a new folder, and there is something already. "
            f"Received: {str(path)!r}. Next: give another name, or remove it."
        )


def write_configs(folder: Path, source: Mapping[str, Any], backbone: Model) -> None:
    """Write the configs of a preset whose backbone became another one.

    Args:
        folder: where to.
        source: configs of the float preset by the names of their files.
        backbone: the serialized form of the new backbone.
    """
    backbone_entry = dict(backbone)
    for key in ("build_config", "compile_config"):
        backbone_entry.pop(key, None)
    config = dict(source[CONFIG])
    config.pop(QUANTIZED, None)
    if backbone_entry.get("registered_name") == _FLOAT:
        config = {**backbone_entry["config"][_LAYER], QUANTIZED: backbone_entry}
    else:
        config = backbone_entry
    _write(folder / CONFIG, config)
    if TASK in source:
        task = dict(source[TASK])
        task["config"] = {**task["config"], "backbone": backbone_entry}
        _write(folder / TASK, task)


def _write(path: Path, config: Any) -> None:
    path.write_text(json.dumps(config, indent=4))
