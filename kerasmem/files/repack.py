"""A `.keras` archive, written anew."""

import json
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Literal

import h5py

from kerasmem.errors import OutputError
from kerasmem.files.coded_model import CodedModel
from kerasmem.files.members import WEIGHTS, opened_weights
from kerasmem.files.weights import (
    ALIGNMENT_BYTES,
    check_same,
    rewrite,
    store_coded,
    store_plain,
    store_shuffled,
)

Coding = Literal["deflate", "entropy", "stored"]

_STORES = {"deflate": store_shuffled, "entropy": store_coded, "stored": store_plain}
_DATED = "metadata.json"
_CONFIG = "config.json"
_PIECE = 1 << 20


def repack(source: Path, target: Path, *, coding: Coding) -> None:
    """Write an archive anew.

    Args:
        source: the archive as Keras wrote it.
        target: where to, in a folder with room for the weights.
        coding: how they are written.
    """
    with (
        opened_weights(source) as old,
        zipfile.ZipFile(source) as stored,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made,
    ):
        for member in stored.infolist():
            if member.filename == WEIGHTS and old is not None:
                _write_weights(old, made, target.with_suffix(".h5"), coding)
            elif member.filename == _CONFIG and coding == "entropy":
                config = CodedModel.wrap(json.loads(stored.read(member)))
                made.writestr(_CONFIG, json.dumps(config))
            elif member.filename == _DATED:
                # As it is: deflated, its size would change with the second.
                made.writestr(_DATED, stored.read(member), zipfile.ZIP_STORED)
            else:
                _copy(stored, made, member)


def _write_weights(
    old: h5py.File, made: zipfile.ZipFile, new: Path, coding: Coding
) -> None:
    rewrite(old, new, _STORES[coding])
    if coding == "stored":
        _write_aligned(made, new)
    else:
        made.write(new, WEIGHTS)
    new.unlink()


def _write_aligned(made: zipfile.ZipFile, new: Path) -> None:
    """Write the weights as they are, where arrays in them lie well in the archive."""
    member = zipfile.ZipInfo.from_file(new, WEIGHTS)
    member.compress_type = zipfile.ZIP_STORED
    # Before the bytes of a member come 30 and its name, and what it says of sizes that
    # do not fit; the rest is made up by an entry that means nothing.
    large = member.file_size >= 1 << 31
    start = made.start_dir + 30 + len(WEIGHTS) + (20 if large else 0) + 4
    # Never a multiple of 512, where HDF5 would take the archive for one of its files.
    missing = (ALIGNMENT_BYTES - start) % (2 * ALIGNMENT_BYTES)
    member.extra = struct.pack("<HH", 0xD935, missing) + bytes(missing)
    with new.open("rb") as reader, made.open(member, "w", force_zip64=large) as writer:
        shutil.copyfileobj(reader, writer, _PIECE)


def check_repacked(source: Path, target: Path, *, coding: Coding) -> None:
    """Read an archive that `repack` wrote, and compare it with its source.

    Raises:
        OutputError: if anything was not read back as it was written.
    """
    with zipfile.ZipFile(target) as written:
        damaged = written.testzip()
    if damaged is not None:
        raise OutputError(f"the member {damaged!r} was not read back as it was written")
    with opened_weights(source) as old, opened_weights(target) as found:
        if old is not None and found is not None:
            check_same(old, found, coded=coding == "entropy")


def _copy(
    stored: zipfile.ZipFile, made: zipfile.ZipFile, member: zipfile.ZipInfo
) -> None:
    large = member.file_size >= 1 << 31
    with (
        stored.open(member) as reader,
        made.open(member.filename, "w", force_zip64=large) as writer,
    ):
        shutil.copyfileobj(reader, writer, _PIECE)
