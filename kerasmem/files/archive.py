"""Files of saved models, and validation of `.keras` archives."""

import io
import lzma
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Literal

import h5py

from kerasmem.errors import InputError, ModelFileError
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.records.regular import check_links, read_regular
from kerasmem.stages import Progress
from kerasmem.units import MIB

WEIGHTS, CONFIG = "model.weights.h5", "config.json"
OPTIMIZER = "optimizer/"
"""Prefix of the paths of optimizer arrays."""

DAMAGED = (
    OSError,
    RuntimeError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    MemoryError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions raised by h5py, zipfile and json for damaged or foreign files."""


def damage(path: Path, error: Exception) -> ModelFileError:
    """Returns the error for a damaged file."""
    is_cut = "truncated file" in str(error)
    reason = "its weights are incomplete" if is_cut else str(error).rstrip(".")
    return ModelFileError(
        f"{str(path)!r} is damaged: {reason}. Next: save or copy it again."
    )


_HEADER = struct.Struct("<4s22xHH")
_MAGIC = b"PK\x03\x04"
_HDF5, SUPERBLOCK_BYTES = b"\x89HDF\r\n\x1a\n", 64
_END_BY_VERSION = {0: 40, 1: 44, 2: 28, 3: 28}
"""Offset of the file size in an HDF5 superblock, by superblock version."""

_PIECE = 1 << 20


class Window(io.RawIOBase):
    """A section of a file as a read-only file object, `size` bytes from `start`."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        """Returns `True`."""
        return True

    def seekable(self) -> bool:
        """Returns `True`."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset within the section."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Returns the current offset within the section."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer up to the end of the section. Returns the number of bytes."""
        room = memoryview(buffer).cast("B")[: max(self._size - self._at, 0)]
        self._file.seek(self._start + self._at)
        count = self._file.readinto(room)  # pyright: ignore[reportAttributeAccessIssue]
        self._at += count
        return count


def data_start(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Returns the offset of a member's data in the archive.

    Raises `ModelFileError` if there is no member at its recorded offset.
    """
    file.seek(member.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != _MAGIC:
        raise ModelFileError(f"The member {member.filename} is not at its offset.")
    _, name, extra = _HEADER.unpack(header)
    return member.header_offset + 30 + name + extra


def weights_member(path: Path) -> tuple[zipfile.ZipInfo, int] | None:
    """Returns the weights member of a `.keras` archive and the offset of its data."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        if WEIGHTS not in archive.namelist():
            return None
        member = archive.getinfo(WEIGHTS)
        return member, data_start(file, member)


@contextmanager
def opened_weights(path: Path) -> Iterator[h5py.File | None]:
    """Opens the HDF5 weights of a `.keras` archive. Yields `None` without weights.

    Stored weights are read in place. Deflated weights are unpacked to a temporary file
    next to the archive, or in the system's temporary directory if that is read-only.
    """
    member_and_start = weights_member(path)
    if member_and_start is None:
        yield None
        return
    member, start = member_and_start
    with ExitStack() as scope:
        if member.compress_type == zipfile.ZIP_STORED:
            file = scope.enter_context(path.open("rb"))
        else:
            file, start = scope.enter_context(_room(path.parent)), 0
            with zipfile.ZipFile(path) as archive, archive.open(member) as reader:
                _unpack(reader, file, member.file_size)
        content = Window(file, start, member.file_size)
        try:
            weights = scope.enter_context(h5py.File(content, "r"))
        except OSError as error:
            raise damage(path, error) from error
        yield weights


def _unpack(reader: IO[bytes], target: BinaryIO, size: int) -> None:
    try:
        beginning = reader.read(SUPERBLOCK_BYTES)
        if size > hdf5_bytes(beginning):
            raise ModelFileError(f"The member {WEIGHTS} is no HDF5 file.")
        target.write(beginning)
        shutil.copyfileobj(reader, target, _PIECE)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelFileError(
            f"The file is damaged: the checksum of {WEIGHTS} does not match."
        ) from error


def hdf5_bytes(beginning: bytes) -> int:
    """Returns the size of an HDF5 file, from its superblock. 0 if it has none."""
    place = _END_BY_VERSION.get(int.from_bytes(beginning[len(_HDF5) :][:1], "little"))
    if not place or not beginning.startswith(_HDF5):
        return 0
    return int.from_bytes(beginning[place : place + 8], "little")


def _room(folder: Path) -> BinaryIO:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


_LARGE_BYTES, _MOST_TIMES = 1 << 32, 100
"""Size and ratio from which Keras rejects a member as a decompression bomb."""

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    NotImplementedError,  # unsupported compression
    lzma.LZMAError,
    struct.error,
    RuntimeError,  # password required
)
_MEMBERS = {CONFIG, "metadata.json"}
_SMALL_BYTES, _MOST_TIMES_OF_SMALL = 16 * MIB, 16
"""Limits for all members except the weights, whose sizes are compared with the
model."""


Weights = Literal["all", "stored", "none"]


def check_archive(path: Path, weights: Weights = "all") -> str:
    """Validates a `.keras` archive, compares checksums and returns its Keras version.

    Deflated weights can be skipped (`"stored"`), because they are checked again when
    they are opened.

    Raises `ModelFileError` if the file is damaged, is no model, would write outside its
    directory, or is a decompression bomb.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive.infolist())
            _check_sums(archive, weights)
            return _version(archive)
    except ModelFileError as error:
        raise ModelFileError(f"{str(path)!r} {error}") from error
    except _UNREADABLE as error:
        raise ModelFileError(
            f"{str(path)!r} is no .keras file, or a damaged one. Next: save or copy "
            "it again."
        ) from error


def _check_sums(archive: zipfile.ZipFile, weights: str) -> None:
    read = [each for each in archive.infolist() if _is_read(each, weights)]
    progress = Progress("comparing checksums", sum(each.file_size for each in read))
    for member in read:
        with archive.open(member) as content:
            try:
                while piece := content.read(_PIECE):
                    progress.add(len(piece))
            except zipfile.BadZipFile as error:
                raise ModelFileError(
                    f"is damaged: the checksum of {member.filename} does not match."
                ) from error


def _is_read(member: zipfile.ZipInfo, weights: str) -> bool:
    is_stored = member.compress_type == zipfile.ZIP_STORED
    is_meant = weights == "all" or (weights == "stored" and is_stored)
    return member.filename != WEIGHTS or is_meant


def _version(archive: zipfile.ZipFile) -> str:
    contents: dict[str, Any] = {}
    for name in sorted(_MEMBERS):
        try:
            contents[name] = read_json(archive.read(name))
        except InputError as error:
            raise ModelFileError(f"has a damaged {name}: {error}") from error
    metadata = contents["metadata.json"]
    if not isinstance(metadata, dict):
        raise ModelFileError("has a damaged metadata.json: not a JSON object.")
    return str(metadata.get("keras_version", "3."))


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    for member in members:
        _check_place(member.filename)
    weights = [member for member in members if member.filename == WEIGHTS]
    others = [member for member in members if member.filename != WEIGHTS]
    _check_bomb(weights, _LARGE_BYTES, _MOST_TIMES)
    for some in (*([other] for other in others), others):
        _check_bomb(some, _SMALL_BYTES, _MOST_TIMES_OF_SMALL)
    for member in others:
        if member.filename in _MEMBERS and member.file_size > MOST_BYTES:
            raise ModelFileError(
                f"has a {member.filename} of {member.file_size} bytes. Expected: "
                f"{MOST_BYTES} at most. The file is not opened."
            )
    if missing := _MEMBERS - {member.filename for member in members}:
        raise ModelFileError(
            f"is a zip archive, but no Keras model: {min(missing)} is missing."
        )


def _check_place(name: str) -> None:
    place = PurePosixPath(name.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts or ":" in name:
        raise ModelFileError(
            f"would write outside of its folder, to {name!r}. No model does that. The "
            "file is not opened."
        )


def _check_bomb(members: list[zipfile.ZipInfo], large: int, times: int) -> None:
    size = sum(member.file_size for member in members)
    compressed_size = sum(member.compress_size for member in members)
    if size > max(large, times * compressed_size):
        raise ModelFileError(
            f"would take {size} bytes, but the file has {compressed_size}. No model "
            "does that. The file is not opened."
        )


_SHARDED = ".weights.json"


def is_weights_alone(path: Path) -> bool:
    """Returns whether a file name denotes weights without a model."""
    return path.name.endswith((".weights.h5", _SHARDED))


def shards_of(path: Path) -> list[Path]:
    """Returns the files that contain the weights. See `is_weights_alone`.

    Raises `ModelFileError` if a file is missing or in another directory.
    """
    if not path.name.endswith(_SHARDED):
        return [path]
    try:
        weight_index = read_json(read_regular(path, MOST_BYTES, follow_link=True))
        parts = [*weight_index["weight_map"].values()]
        lists = (part if isinstance(part, list) else [part] for part in parts)
        names = dict.fromkeys(str(name) for each in lists for name in each)
    except (InputError, OSError, LookupError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{str(path)!r} has no valid weight_map. Expected: a file written by "
            "model.save_weights."
        ) from error
    present = {file.name for file in path.parent.iterdir() if file.is_file()}
    for name in names:
        if name not in present:
            raise ModelFileError(
                f"{str(path)!r} refers to {name[:100]!r}, which is not in its folder."
            )
    shards = [path.with_name(name) for name in names]
    check_links(path.parent, shards)
    return shards


def stored_bytes(path: str | Path) -> int:
    """Returns the size of a file with its shards, or of all files in a directory."""
    path = Path(path)
    if path.is_dir():
        return sum(file_sizes(path).values())
    files = {path, *shards_of(path)} if is_weights_alone(path) else {path}
    return sum(file.stat().st_size for file in files)


def file_sizes(folder: Path) -> dict[Path, int]:
    """Returns the size of every file in a directory tree, sorted by path."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file: file.stat().st_size for file in files}
