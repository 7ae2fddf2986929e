"""Presets of KerasHub with a compressed backbone."""

import json
import shutil
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
from kerasmem.errors import ConfigError
from kerasmem.files.archive import CONFIG, WEIGHTS
from kerasmem.files.preset import (
    TASK,
    TASK_WEIGHTS,
    check_new_folder,
    config_of,
    is_preset,
    weight_files,
    write_configs,
)
from kerasmem.files.save import Coding, check
from kerasmem.files.write import write_model
from kerasmem.graph.layers import sublayers
from kerasmem.records.regular import check_output, check_outside
from kerasmem.types import Layer, Model


def is_of_hub(model: Model) -> bool:
    """Return whether a model is a task or a backbone of KerasHub."""
    return any(cls.__module__.startswith("keras_hub.") for cls in type(model).__mro__)


def write_preset(model: Model, folder: Path, coding: Coding) -> None:
    """Write a task or a backbone as a preset.

    The backbone has its weights in fewer bits as it is; what a task has besides has the
    floats that its codes stand for, because KerasHub makes these layers itself.

    Args:
        model: it, compressed or not.
        folder: an empty folder, in another one with room.
        coding: how the weights are written, as for `km.save_model`.

    Raises:
        ConfigError: if factors are beside the backbone.
        OutputError: if the folder cannot be written.
    """
    backbone = getattr(model, "backbone", None) or model
    beside = _layers_beside(model, backbone)
    if layers := [layer for layer in beside if has_factors(layer)]:
        raise ConfigError(
            f"The layer {layers[0].name!r} has factors, and is none of the "
            "backbone's: KerasHub makes it itself, with a whole kernel. Next: leave it "
            "out, by km.Factorize(exclude=...), or save a .keras file."
        )
    model.save_to_preset(str(folder))
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


def write_compressed(model: Model, folder: Path, coding: Coding, source: Path) -> None:
    """Write a preset with another backbone than `source`, all else as there.

    Tokenizer, preprocessor, assets and what a task has besides are copied.

    Args:
        model: the backbone.
        folder: an empty folder, in another one with room.
        coding: how the weights are written, as for `km.save_model`.
        source: the preset that the backbone is of.

    Raises:
        ModelFileError: if a file of the preset is missing or damaged.
        OutputError: if the folder cannot be written.
    """
    present = [source / name for name in (CONFIG, TASK) if (source / name).is_file()]
    weights = [file for file in weight_files(source) if file.name != TASK_WEIGHTS]
    copy_files(source, folder, without={*present, *weights})
    configs = {file.name: config_of(file) for file in present}
    _write_backbone(model, folder, coding, configs)


def copy_files(source: Path, folder: Path, without: Collection[Path] = ()) -> None:
    """Copy the files of a folder and the folders within, but for some."""
    for file in sorted(source.rglob("*")):
        if file.is_file() and file not in without:
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def check_output_of(
    model_or_path: Any, output: str | Path | None, coding: Coding | None
) -> None:
    """Raise unless a compressed model can be written at `output`.

    Args:
        model_or_path: what is compressed.
        output: where to; None for nowhere.
        coding: the one that the caller asks for.

    Raises:
        ConfigError: if it is no `.keras` file, nor of a preset a new folder; if it is
            inside the input folder; or if KerasHub cannot read the coding.
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
            "The weights of a preset are read by KerasHub, which knows of no coding by "
            "entropy. Next: coding='deflate' (--coding deflate). Received: "
            f"coding={coding!r}."
        )


def _write_backbone(
    backbone: Model, folder: Path, coding: Coding, configs: Mapping[str, Any]
) -> None:
    """Write the weights and configs of a backbone into a preset.

    Args:
        backbone: it.
        folder: the preset.
        coding: of the weights; KerasHub cannot undo one by entropy.
        configs: of the float preset, by the names of their files.
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
