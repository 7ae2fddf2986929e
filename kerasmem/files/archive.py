"""Whether an archive can be what it says, before anything in it is used."""

import zipfile
import zlib
from pathlib import Path, PurePosixPath

from kerasmem.errors import ModelFileError

_LARGE_BYTES, _MOST_TIMES = 1 << 32, 100
"""Keras refuses what is so large and was so much smaller in the file, too."""

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    NotImplementedError,  # another way of compressing
    RuntimeError,  # a password
)
_MEMBERS = {"config.json", "metadata.json"}


def check_archive(path: Path) -> None:
    """Read a `.keras` archive through, and compare its checksums.

    Args:
        path: the file.

    Raises:
        ModelFileError: if it is damaged, is no model, or would write or take up what no
            model does.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                _check_member(path, member)
            if missing := _MEMBERS - set(archive.namelist()):
                raise ModelFileError(
                    f"{str(path)!r} is a zip archive, but no Keras model: "
                    f"{min(missing)} is missing."
                )
            damaged = archive.testzip()
    except _UNREADABLE as error:
        raise ModelFileError(
            f"{str(path)!r} is no .keras file, or a damaged one."
        ) from error
    if damaged is not None:
        raise ModelFileError(
            f"{str(path)!r} is damaged: the checksum of {damaged} does not fit."
        )


def _check_member(path: Path, member: zipfile.ZipInfo) -> None:
    place = PurePosixPath(member.filename.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or ":" in place.parts[0]:
        raise ModelFileError(
            f"{str(path)!r} would write outside of its folder, to {member.filename!r}. "
            "No model does that: it is not opened."
        )
    if member.file_size > max(_LARGE_BYTES, _MOST_TIMES * member.compress_size):
        raise ModelFileError(
            f"{str(path)!r} would take {member.file_size} bytes for "
            f"{member.filename!r}, of which the file has {member.compress_size}. No "
            "model does that: it is not opened."
        )
