"""Writes KerasHub presets with a compressed backbone."""

import json
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import keras

from kerasmem.compression.factorize.inside import (
    FactorizedBlock,
    factorized_part,
    has_factors,
)
from kerasmem.compression.quantize.dequantize import dequantize
from kerasmem.compression.quantize.layer import QuantizedBlock, part_as_block
from kerasmem.compression.quantize.variable import StandIn
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.files.archive import CONFIG, WEIGHTS
from kerasmem.files.load import first_reason
from kerasmem.files.preset import (
    TASK,
    TASK_WEIGHTS,
    check_new_folder,
    config_of,
    is_preset,
    open_preprocessor,
    weight_files,
    write_configs,
)
from kerasmem.files.save import Coding, check
from kerasmem.files.write import write_model
from kerasmem.graph.layers import sublayers
from kerasmem.records.regular import check_output, check_outside
from kerasmem.types import Layer, Model


def is_of_hub(model: Model) -> bool:
    """Returns whether a model is a task or a backbone of KerasHub."""
    return any(cls.__module__.startswith("keras_hub.") for cls in type(model).__mro__)


def write_preset(model: Model, folder: Path, coding: Coding) -> None:
    """Writes a task or a backbone as a preset.

    Only the backbone keeps quantized weights. KerasHub builds the other layers of a
    task, so their weights are dequantized. The parent of `folder` holds a temporary
    file.

    Raises:
        ConfigError: If a layer outside of the backbone is factorized.
        OutputError: If the folder cannot be written.
    """
    backbone = getattr(model, "backbone", None) or model
    beside = _layers_beside(model, backbone)
    if layers := [layer for layer in beside if has_factors(layer)]:
        raise ConfigError(
            f"The factorized layer {layers[0].name!r} is outside of the backbone, "
            "where KerasHub supports only full kernels. Next: exclude the layer with "
            "km.Factorize(exclude=...), or save a .keras file."
        )
    _save_by_hub(model, folder)
    for file in weight_files(folder):
        if file.name != TASK_WEIGHTS:
            file.unlink()
    if (folder / TASK_WEIGHTS).is_file() and any(map(_has_codes, beside)):
        dequantize(model).save_task_weights(str(folder / TASK_WEIGHTS))
    configs = {CONFIG: {}}
    if backbone is not model:
        configs[TASK] = _float_form(model)
    with factorized_part(model, backbone), part_as_block(model, backbone):
        _write_backbone(backbone, folder, coding, configs)


def save_preset(model: Model, folder: str | Path) -> None:
    """Writes a compressed task as KerasHub's `save_to_preset` would.

    KerasHub reads the class of the backbone in its config, so the config must name the
    float class. Files in an existing folder are replaced once all files are written.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        preset = Path(temporary, "preset")
        write_preset(model, preset, "deflate")
        for pattern in ("model.weights.json", "model_*.weights.h5"):  # shards
            for file in Path(folder).glob(pattern):
                file.unlink()
        copy_files(preset, Path(folder))


def _save_by_hub(model: Model, folder: str | Path) -> None:
    save: Any = next(
        vars(cls)["save_to_preset"]
        for cls in type(model).__mro__
        if "save_to_preset" in vars(cls) and not cls.__module__.startswith("kerasmem.")
    )
    save(model, str(folder))


def write_compressed(model: Model, folder: Path, coding: Coding, source: Path) -> None:
    """Writes a preset with another backbone than `source`, and copies all other files.

    The parent of `folder` holds a temporary file.

    Raises:
        ModelFileError: If a file of the preset is missing or damaged.
        OutputError: If the folder cannot be written.
    """
    present = [source / name for name in (CONFIG, TASK) if (source / name).is_file()]
    weights = [file for file in weight_files(source) if file.name != TASK_WEIGHTS]
    copy_files(source, folder, without={*present, *weights})
    configs = {file.name: config_of(file) for file in present}
    _write_backbone(model, folder, coding, configs)


def warn_of_preprocessor(folder: Path, objects: Mapping[str, Any]) -> None:
    """Warns the caller of `compress` if the tokenizer of a preset cannot be opened."""
    try:
        open_preprocessor(folder, objects)
    except Exception as error:  # noqa: BLE001 - KerasHub raises any
        warnings.warn(
            f"The tokenizer or converter of the preset {str(folder)!r} cannot be "
            f"opened: {first_reason(error).rstrip('.')}. The compressed preset will "
            "have the same fault, because only weights are compressed. Next: save the "
            "task with a tokenizer that opens.",
            KerasMemWarning,
            stacklevel=5,
        )


def copy_files(source: Path, folder: Path, without: Collection[Path] = ()) -> None:
    """Copies the files of a folder and its subfolders, except for `without`."""
    for file in sorted(source.rglob("*")):
        if file.is_file() and file not in without:
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def check_output_of(
    model_or_path: Any, output: str | Path | None, coding: Coding | None
) -> None:
    """Raises `ConfigError` if `output` is not valid for a compressed model.

    Valid outputs are a `.keras` file, or a new folder if the input is a preset.
    KerasHub cannot read entropy coding.
    """
    if output is None:
        return
    output, is_path = Path(output), isinstance(model_or_path, str | Path)
    if is_path:
        check_outside(output, model_or_path)
    if output.suffix == ".keras" or not (is_path and is_preset(model_or_path)):
        check_output(output, ".keras")
        return
    check_new_folder(output)
    if coding == "entropy":
        raise ConfigError(
            "KerasHub cannot read presets with entropy coding. Received: "
            f"coding={coding!r}. Next: give coding='deflate' (--coding deflate)."
        )


def _write_backbone(
    backbone: Model, folder: Path, coding: Coding, configs: Mapping[str, Any]
) -> None:
    """Writes the weights and configs of a backbone into a preset folder.

    `configs` contains the configs of the float preset by file name.
    """
    whole = folder.with_name("backbone.keras")
    coding = "deflate" if coding == "entropy" else coding
    check(backbone, whole, write_model(backbone, whole, coding))
    with zipfile.ZipFile(whole) as archive:
        form = json.loads(archive.read(CONFIG))
        with archive.open(WEIGHTS) as source, (folder / WEIGHTS).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    whole.unlink()
    write_configs(folder, configs, form)


def _float_form(model: Model) -> dict[str, Any]:
    form = keras.saving.serialize_keras_object(model)
    for block in (QuantizedBlock, FactorizedBlock):
        if isinstance(model, block):
            form = form["config"]["layer"]
    for key in ("build_config", "compile_config"):
        form.pop(key, None)
    return form


def _layers_beside(model: Model, backbone: Model) -> list[Any]:
    inside = set(map(id, sublayers(backbone)))
    return [layer for layer in sublayers(model)[1:] if id(layer) not in inside]


def _has_codes(layer: Layer) -> bool:
    return any(isinstance(v, StandIn) for v in vars(layer).values())
