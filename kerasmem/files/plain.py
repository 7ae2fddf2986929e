"""A file of a model made anew with its weights as they are, one piece at a time."""

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py

from kerasmem.errors import ModelFileError
from kerasmem.files.coded_model import CONFIG, CodedModel
from kerasmem.files.declared import check_declared
from kerasmem.files.members import OPTIMIZER, WEIGHTS, opened_weights
from kerasmem.files.weights import uncoded
from kerasmem.records.plain import read_json


def unpacked(path: Path, target: Path) -> None:
    """Write a `.keras` file again, with nothing in it compressed or coded.

    Args:
        path: the file.
        target: where to, in a folder with room for the weights.

    Raises:
        ModelFileError: if the weights are damaged, or far larger than the file.
    """
    weights = target.with_suffix(".h5")
    with (
        opened_weights(path) as old,
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(target, "w") as made,
    ):
        if old is not None:
            check_declared(path, old)
        config = read_json(archive.read(CONFIG))
        is_coded = config.get("class_name") == CodedModel.__name__
        for member in archive.infolist():
            if member.filename == WEIGHTS and old is not None:
                with h5py.File(weights, "w") as new:
                    _copy(old, new, is_coded=is_coded)
                made.write(weights, WEIGHTS)
                weights.unlink()
            elif member.filename == CONFIG and is_coded:
                inner = config["config"]["model"]
                compiled = config.get("compile_config")
                if compiled is not None:
                    inner["compile_config"] = compiled
                made.writestr(CONFIG, json.dumps(inner))
            else:
                made.writestr(member.filename, archive.read(member))


def _copy(old: h5py.File, new: h5py.File, *, is_coded: bool) -> None:
    """Copy groups and arrays, each once and by no link that leads elsewhere."""

    def copy(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            new.require_group(name).attrs.update(item.attrs)
        elif not (item.shape and name.startswith(OPTIMIZER)):  # slots begin anew
            _copy_array(item, new, name, is_coded=is_coded)

    new.attrs.update(old.attrs)
    old.visititems(copy)


def _copy_array(
    item: h5py.Dataset, new: h5py.File, name: str, *, is_coded: bool
) -> None:
    if item.external or item.is_virtual:
        raise ModelFileError(f"The weight {name!r} is kept outside of the file.")
    chunks = item.chunks
    if is_coded:
        array = uncoded(item[()]) if item.shape else item[()]
        made = new.create_dataset(name, data=array)
        if array.dtype.name == "bfloat16":
            made.attrs["dtype"] = "bfloat16"
    elif chunks is None:
        item.file.copy(item, new, name)
        return
    else:
        made = new.create_dataset(name, item.shape, item.dtype)
        for number in range(item.id.get_num_chunks()):
            first = item.id.get_chunk_info(number).chunk_offset
            piece = tuple(
                slice(start, start + length)
                for start, length in zip(first, chunks, strict=True)
            )
            made[piece] = item[piece]
    made.attrs.update(item.attrs)
