"""A file of a model made anew with its weights as they are, one piece at a time."""

import json
import zipfile
from pathlib import Path

import h5py

from kerasmem.files.coded_model import CONFIG, CodedModel
from kerasmem.files.members import WEIGHTS, opened_weights
from kerasmem.files.weights import uncoded
from kerasmem.records.plain import read_json

_PIECE_BYTES = 1 << 24


def unpacked(path: Path, target: Path) -> None:
    """Write a `.keras` file again, with nothing in it compressed or coded.

    Args:
        path: the file.
        target: where to, in a folder with room for the weights.

    Raises:
        ModelFileError: if the weights are damaged.
    """
    weights = target.with_suffix(".h5")
    with (
        opened_weights(path) as old,
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(target, "w") as made,
    ):
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


def _copy(old: h5py.Group, new: h5py.Group, *, is_coded: bool) -> None:
    for name, value in old.attrs.items():
        new.attrs[name] = value
    for name, item in old.items():
        if isinstance(item, h5py.Group):
            _copy(item, new.create_group(name), is_coded=is_coded)
        else:
            _copy_array(item, new, name, is_coded=is_coded)


def _copy_array(
    item: h5py.Dataset, new: h5py.Group, name: str, *, is_coded: bool
) -> None:
    if item.chunks is None and not is_coded:
        item.file.copy(item, new, name)
        return
    if is_coded:
        array = uncoded(item[()]) if item.shape else item[()]
        made = new.create_dataset(name, data=array)
        if array.dtype.name == "bfloat16":
            made.attrs["dtype"] = "bfloat16"
    else:
        made = new.create_dataset(name, item.shape, item.dtype)
        rows = max(_PIECE_BYTES * len(item) // max(item.nbytes, 1), 1)
        for start in range(0, len(item), rows):
            made[start : start + rows] = item[start : start + rows]
    for key, value in item.attrs.items():
        made.attrs[key] = value
