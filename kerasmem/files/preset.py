"""KerasHub presets: directories with configs, weights and assets.

`config.json` and `model.weights.h5`, or the shards of `model.weights.json`, belong to
the backbone. A task adds `task.json` and `task.weights.h5`. A tokenizer or image
converter adds a config and assets.

For a quantized backbone, `config.json` describes the float backbone, because KerasHub
reads its class there. The key `QUANTIZED` contains the quantized backbone. `task.json`
contains the quantized backbone directly.
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
TASK_WEIGHTS, PREPROCESSOR = "task.weights.h5", "preprocessor.json"
QUANTIZED = "kerasmem_quantized"

_FLOAT, _LAYER = "kerasmem>QuantizedLayer", "layer"


def is_preset(path: Any) -> bool:
    """Returns whether a path is a directory with the config of a Keras model."""
    if not isinstance(path, str | Path):
        return False
    folder = Path(path)
    is_saved_model = (folder / "saved_model.pb").exists()
    return not is_saved_model and any((folder / name).is_file() for name in _TOLD_BY)


_TOLD_BY = (CONFIG, TASK, WEIGHTS, SHARDED)


def weights_of(folder: Path) -> Path:
    """Returns the weights file of a preset's backbone."""
    if not (folder / CONFIG).is_file():
        raise ModelFileError(
            f"The preset {str(folder)!r} is incomplete: it has no {CONFIG}."
        )
    for name in (WEIGHTS, SHARDED):
        if (folder / name).is_file():
            return folder / name
    raise ModelFileError(
        f"The preset {str(folder)!r} is incomplete: it has neither {WEIGHTS} nor "
        f"{SHARDED}. Expected: the output of KerasHub's `save_to_preset`."
    )


def weight_files(folder: Path) -> list[Path]:
    """Returns all weight files of a preset.

    Raises `ModelFileError` if a file is missing or damaged, or a link points out of the
    preset.
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
    """Returns the content of a JSON config in a preset."""
    try:
        content = read_json(read_regular(file, MOST_BYTES, follow_link=True))
        if not isinstance(content, dict):
            raise InputError("it is no object.")
    except InputError as error:
        text = f"The config {str(file)!r} is damaged: {error}"
        raise ModelFileError(text) from error
    if not isinstance(content.get("config"), dict):
        raise ModelFileError(
            f"{str(file)!r} is no config of a Keras model. Expected: the output of "
            "KerasHub's `save_to_preset`. Next: load a checkpoint of another library "
            "with KerasHub's `from_preset`, and save it."
        )
    return content


def backbone_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config of the backbone to which the weights belong."""
    quantized_config = config.get(QUANTIZED)
    return config if quantized_config is None else quantized_config


def load_task(folder: Path, objects: Mapping[str, Any], *, compiled: bool) -> Any:
    """Returns the task of a preset, with its tokenizer.

    If not `compiled`, omits the loss, the metrics and the optimizer.
    """
    weights = weights_of(folder)
    config = config_of(folder / TASK)
    config["config"] |= {} if compiled else {"compile": False}
    task = _deserialized(config, objects)
    backbone: Any = getattr(task, "backbone", None)
    if not (isinstance(task, keras.Model) and isinstance(backbone, keras.Model)):
        raise ModelFileError(
            f"{TASK} contains a {type(task).__name__}. Expected: a KerasHub task."
        )
    if task.preprocessor is not None:  # before the weights, because it may fail
        task.preprocessor.load_preset_assets(str(folder))
    if (folder / TASK_WEIGHTS).is_file():
        task.load_task_weights(str(folder / TASK_WEIGHTS))
    backbone.load_weights(str(weights))
    return task


def open_preprocessor(folder: Path, objects: Mapping[str, Any]) -> None:
    """Opens the preprocessor of a preset, if any, with its tokenizer or converter.

    Raises the exception of KerasHub if this is not possible.
    """
    if (folder / PREPROCESSOR).is_file():
        preprocessor = _deserialized(config_of(folder / PREPROCESSOR), objects)
        preprocessor.load_preset_assets(str(folder))


def made_of_configs(folder: Path) -> keras.Model:
    """Returns the task or the backbone of a preset without loading weights.

    Raises `ModelFileError` if a config is damaged or describes another object.
    """
    has_task = (folder / TASK).is_file()
    file = folder / (TASK if has_task else CONFIG)
    model = _deserialized(backbone_config(config_of(file)), {})
    if not isinstance(model, keras.Model):
        raise ModelFileError(
            f"{file.name} contains a {type(model).__name__}. Expected: a KerasHub "
            "model."
        )
    return model


def _deserialized(config: Mapping[str, Any], objects: Mapping[str, Any]) -> Any:
    return keras.saving.deserialize_keras_object(
        config, custom_objects=dict(objects), safe_mode=True
    )


def check_new_folder(path: Path) -> None:
    """Raises `ConfigError` unless a directory can be created at `path`."""
    check_parent(path)
    if path.is_symlink() or path.exists():
        if path.is_dir() and not any(path.iterdir()):
            return
        raise ConfigError(
            "The output of a preset must be a new folder, but the path exists. "
            f"Received: {str(path)!r}. Next: choose another name, or remove it."
        )


def write_configs(folder: Path, source: Mapping[str, Any], backbone: Model) -> None:
    """Writes the configs of a preset with another backbone.

    `source` contains the configs of the float preset by file name.
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
