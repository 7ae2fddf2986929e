"""A `.keras` archive, made smaller."""

import json
import shutil
import zipfile
from pathlib import Path

from kerasmem.files.coded_model import CodedModel
from kerasmem.files.weights import check_same, rewrite, store_coded, store_shuffled

_DATED = "metadata.json"
_CONFIG = "config.json"
_WEIGHTS = "model.weights.h5"
_PIECE = 1 << 20


def repack(source: Path, target: Path, folder: Path, *, coded: bool) -> None:
    """Write an archive anew, smaller, and read it back.

    Args:
        source: the archive as Keras wrote it.
        target: where to.
        folder: room for the weights.
        coded: whether the weights are coded by their entropy.

    Raises:
        OutputError: if the weights were not read back as they were written.
    """
    old, new, found = (folder / f"{name}.h5" for name in ("old", "new", "found"))
    with (
        zipfile.ZipFile(source) as stored,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as smaller,
    ):
        for member in stored.infolist():
            if member.filename == _WEIGHTS:
                _extract(stored, old)
                rewrite(old, new, store_coded if coded else store_shuffled)
                smaller.write(new, _WEIGHTS)
            elif member.filename == _CONFIG and coded:
                config = CodedModel.wrap(json.loads(stored.read(member)))
                smaller.writestr(_CONFIG, json.dumps(config))
            elif member.filename == _DATED:
                # As it is: deflated, its size would change with the second.
                smaller.writestr(_DATED, stored.read(member), zipfile.ZIP_STORED)
            else:
                _copy(stored, smaller, member)
    if old.exists():
        with zipfile.ZipFile(target) as written:
            _extract(written, found)
        check_same(old, found, coded=coded)


def _extract(archive: zipfile.ZipFile, target: Path) -> None:
    # To its end, where the checksum is compared.
    with archive.open(_WEIGHTS) as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, _PIECE)


def _copy(
    stored: zipfile.ZipFile, smaller: zipfile.ZipFile, member: zipfile.ZipInfo
) -> None:
    large = member.file_size >= 1 << 31
    with (
        stored.open(member) as reader,
        smaller.open(member.filename, "w", force_zip64=large) as writer,
    ):
        shutil.copyfileobj(reader, writer, _PIECE)
