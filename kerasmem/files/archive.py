"""Whether an archive can be what it says, before anything in it is used."""

import lzma
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Literal

from kerasmem.errors import InputError, ModelFileError
from kerasmem.files.members import WEIGHTS
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.stages import Progress
from kerasmem.units import MIB

_LARGE_BYTES, _MOST_TIMES = 1 << 32, 100
"""Keras refuses what is so large and was so much smaller in the file, too."""

_PIECE = 1 << 20

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    NotImplementedError,  # another way of compressing
    lzma.LZMAError,
    struct.error,
    RuntimeError,  # a password
)
_MEMBERS = {"config.json", "metadata.json"}
_SMALL_BYTES, _MOST_TIMES_OF_SMALL = 16 * MIB, 16
"""Of all members but the weights, which are compared with the model one by one."""


def check_archive(
    path: Path, weights: Literal["all", "stored", "none"] = "all"
) -> None:
    """Read a `.keras` archive through, and compare its checksums.

    Args:
        path: the file.
        weights: which are read; those that are deflated are compared too when they are
            opened.

    Raises:
        ModelFileError: if it is damaged, is no model, or would write or take up what no
            model does.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            for member in members:
                _check_place(path, member.filename)
            _check_size(path, members)
            if missing := _MEMBERS - set(archive.namelist()):
                raise ModelFileError(
                    f"{str(path)!r} is a zip archive, but no Keras model: "
                    f"{min(missing)} is missing."
                )
            damaged = _first_damaged(archive, weights)
            if damaged is None:
                _check_json(path, archive)
    except _UNREADABLE as error:
        raise ModelFileError(
            f"{str(path)!r} is no .keras file, or a damaged one."
        ) from error
    if damaged is not None:
        raise ModelFileError(
            f"{str(path)!r} is damaged: the checksum of {damaged} does not fit."
        )


def _first_damaged(archive: zipfile.ZipFile, weights: str) -> str | None:
    read = [each for each in archive.infolist() if _is_read(each, weights)]
    progress = Progress("comparing checksums", sum(each.file_size for each in read))
    for member in read:
        with archive.open(member) as content:
            try:
                while piece := content.read(_PIECE):
                    progress.add(len(piece))
            except zipfile.BadZipFile:
                return member.filename
    return None


def _is_read(member: zipfile.ZipInfo, weights: str) -> bool:
    is_stored = member.compress_type == zipfile.ZIP_STORED
    is_meant = weights == "all" or (weights == "stored" and is_stored)
    return member.filename != WEIGHTS or is_meant


def _check_place(path: Path, name: str) -> None:
    place = PurePosixPath(name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or ":" in name:
        raise ModelFileError(
            f"{str(path)!r} would write outside of its folder, to {name!r}. No model "
            "does that: it is not opened."
        )


def _check_json(path: Path, archive: zipfile.ZipFile) -> None:
    for name in sorted(_MEMBERS):
        try:
            read_json(archive.read(name))
        except InputError as error:
            raise ModelFileError(
                f"{str(path)!r} has a damaged {name}: {error}"
            ) from error


def _check_size(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive one of whose members is a bomb, or all of them together."""
    weights = [member for member in members if member.filename == WEIGHTS]
    others = [member for member in members if member.filename != WEIGHTS]
    _check_bomb(path, weights, _LARGE_BYTES, _MOST_TIMES)
    for some in (*([other] for other in others), others):
        _check_bomb(path, some, _SMALL_BYTES, _MOST_TIMES_OF_SMALL)
    for member in others:
        if member.filename in _MEMBERS and member.file_size > MOST_BYTES:
            raise ModelFileError(
                f"{str(path)!r} has a {member.filename} of {member.file_size} bytes. "
                f"Expected: {MOST_BYTES} at most. It is not opened."
            )


def _check_bomb(
    path: Path, members: list[zipfile.ZipInfo], large: int, times: int
) -> None:
    size = sum(member.file_size for member in members)
    stored = sum(member.compress_size for member in members)
    if size > max(large, times * stored):
        raise ModelFileError(
            f"{str(path)!r} would take {size} bytes, of which the file has {stored}. "
            "No model does that: it is not opened."
        )
