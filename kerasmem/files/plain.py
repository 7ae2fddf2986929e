"""Creates `.keras` files with uncompressed weights, one array at a time.

The source is another `.keras` file, a `.weights.h5` file, or the shards of a
`.weights.json` file. For weights files, `config.json` in the same directory describes
the model, as in an unzipped `.keras` file or a KerasHub preset.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import keras

from kerasmem.errors import InputError, ModelFileError
from kerasmem.files.archive import (
    CONFIG,
    DAMAGED,
    OPTIMIZER,
    WEIGHTS,
    is_weights_alone,
    opened_weights,
    shards_of,
)
from kerasmem.files.atomic import held_folder
from kerasmem.files.datasets import check_declared, check_heaps, datasets
from kerasmem.files.preset import backbone_config
from kerasmem.files.skeleton import is_coded
from kerasmem.files.weights import WeightsFile
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.records.regular import check_links, read_regular
from kerasmem.stages import Progress

_Parts = tuple[dict[str, bytes], list[h5py.File]]
METADATA, ASSETS = "metadata.json", "assets"


def check_has_model(path: Path) -> None:
    """Raises `ModelFileError` if there is no config next to the weights."""
    if not path.is_file():
        raise ModelFileError(f"There is no file {str(path)!r}.")
    if not path.with_name(CONFIG).is_file():
        raise ModelFileError(
            f"{str(path)!r} contains only weights, and there is no {CONFIG} (from "
            "model.to_json() or KerasHub) in its folder. Next: "
            "model.load_weights(path), then km.save_model(model, 'model.keras')."
        )


@contextmanager
def _parts_of_archive(path: Path) -> Iterator[_Parts]:
    with opened_weights(path) as weights, zipfile.ZipFile(path) as archive:
        if weights is not None:
            check_declared(path, weights)
        names = (name for name in archive.namelist() if name != WEIGHTS)
        members = {name: archive.read(name) for name in names}
        yield members, [] if weights is None else [weights]


@contextmanager
def _parts_of_weights(path: Path) -> Iterator[_Parts]:
    check_has_model(path)
    files = [path.with_name(CONFIG), path.with_name(METADATA)]
    files += sorted(path.with_name(ASSETS).rglob("*"))
    members = {METADATA: json.dumps({"keras_version": keras.__version__}).encode()}
    with ExitStack() as scope:
        check_links(path.parent, files)
        try:
            for file in files:
                if file.is_file():
                    name = file.relative_to(path.parent).as_posix()
                    members[name] = read_regular(file, MOST_BYTES, follow_link=True)
            weights = []
            for shard in shards_of(path):
                check_heaps(shard)
                weights.append(scope.enter_context(h5py.File(shard, "r")))
                check_declared(shard, weights[-1])
        except (InputError, *DAMAGED) as error:
            raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error
        yield members, weights


@contextmanager
def made_whole(path: Path, folder: Path) -> Iterator[Path]:
    """Context manager that yields a `.keras` file with uncompressed weights.

    `folder` needs space for the weights. Raises `ModelFileError` if the weights are
    damaged or far larger than the file. Errors raised in the scope are rewritten to
    refer to `path`.
    """
    with held_folder(folder) as room:
        whole = room / "model.keras"
        try:
            _write_plain(path, whole)
            yield whole
        except ModelFileError as error:
            text = str(error).replace(str(whole), str(path))
            raise ModelFileError(text) from error


def _write_plain(path: Path, target: Path) -> None:
    file = target.with_suffix(".h5")
    open_parts = _parts_of_weights if is_weights_alone(path) else _parts_of_archive
    with (
        open_parts(path) as (members, weights),
        zipfile.ZipFile(target, "w") as archive,
    ):
        config = _config(path, members)
        backbone = backbone_config(config)
        if backbone is not config:
            members[CONFIG] = json.dumps(backbone).encode()
        has_codes = is_coded(config)
        if has_codes:
            inner, compile_config = (
                config["config"]["model"],
                config.get("compile_config"),
            )
            inner |= (
                {} if compile_config is None else {"compile_config": compile_config}
            )
            members[CONFIG] = json.dumps(inner).encode()
        for name, content in members.items():
            archive.writestr(name, content)
        if weights:
            _write_weights(path, file, weights, coded=has_codes)
            archive.write(file, WEIGHTS)
            file.unlink()


def _write_weights(
    path: Path, file: Path, weights: list[h5py.File], *, coded: bool
) -> None:

    def is_wanted(name: str, item: h5py.Dataset) -> bool:
        if item.external or item.is_virtual:
            raise ModelFileError(f"The weight {name!r} is stored outside the file.")
        if name in new.written:
            raise ModelFileError(f"The weight {name!r} is in two files.")
        return not (item.shape and name.startswith(OPTIMIZER))  # slots are reset

    try:
        sizes = (each.nbytes for old in weights for each in datasets(old))
        progress = Progress("unpacking the weights", sum(sizes))
        with WeightsFile(file, "stored", progress) as new:
            for old in weights:
                new.put_rest(old, is_wanted, coded=coded)
    except ModelFileError:
        raise
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno:  # a disk error
            raise
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error


def _config(path: Path, members: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        config = read_json(members[CONFIG])
        if not isinstance(config, dict):
            raise InputError("it is no object.")
    except InputError as error:
        text = f"The config of {str(path)!r} is damaged: {error}"
        raise ModelFileError(text) from error
    return config
