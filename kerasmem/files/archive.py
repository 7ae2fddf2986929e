"""Whether an archive can be what it says, before anything in it is used."""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Container
from pathlib import Path, PurePosixPath

from kerasmem.errors import ModelFileError

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


def check_archive(path: Path, unread: Container[str] = ()) -> None:
    """Read a `.keras` archive through, and compare its checksums.

    Args:
        path: the file.
        unread: names of members that are not read.

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
            damaged = _first_damaged(archive, unread)
    except _UNREADABLE as error:
        raise ModelFileError(
            f"{str(path)!r} is no .keras file, or a damaged one."
        ) from error
    if damaged is not None:
        raise ModelFileError(
            f"{str(path)!r} is damaged: the checksum of {damaged} does not fit."
        )


def _first_damaged(archive: zipfile.ZipFile, unread: Container[str]) -> str | None:
    for member in archive.infolist():
        if member.filename not in unread:
            with archive.open(member) as content:
                try:
                    while content.read(_PIECE):
                        pass
                except zipfile.BadZipFile:
                    return member.filename
    return None


def _check_place(path: Path, name: str) -> None:
    place = PurePosixPath(name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or ":" in name:
        raise ModelFileError(
            f"{str(path)!r} would write outside of its folder, to {name!r}. No model "
            "does that: it is not opened."
        )


def _check_size(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive one of whose members is a bomb, or all of them together."""
    sizes = [(member.file_size, member.compress_size) for member in members]
    whole = (sum(size for size, _ in sizes), path.stat().st_size)
    for size, stored in (*sizes, whole):
        if size > max(_LARGE_BYTES, _MOST_TIMES * stored):
            raise ModelFileError(
                f"{str(path)!r} would take {size} bytes, of which the file has "
                f"{stored}. No model does that: it is not opened."
            )
