"""Regular files and nothing else, in folders that anybody may have written to.

A link in a cache or in the folder of a run would lead a reader, or worse a writer, to a
file elsewhere; a fifo would keep it waiting for ever.
"""

import errno
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from kerasmem.errors import ConfigError, InputError, ModelFileError
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.units import format_bytes

# Neither is there on Windows, where a file is what its name says.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)


def check_output(path: Path, suffix: str) -> None:
    """Raise unless a file can be made at `path`; long work should not end in this.

    Raises:
        ConfigError: if the suffix is another, or the folder is missing.
    """
    if path.suffix != suffix:
        raise ConfigError(f"The output must end in {suffix}. Received: {str(path)!r}.")
    check_parent(path)
    if path.is_dir():
        raise ConfigError(f"The output is a folder. Received: {str(path)!r}.")


def check_parent(path: Path) -> None:
    """Raise unless the folder of an output exists and the output can have its name.

    Raises:
        ConfigError: if not.
    """
    try:
        path.resolve()
        path.exists()
        has_parent = path.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"The output path is invalid: {reason}. Received: {str(path)!r}. Next: "
            "give another name."
        ) from error
    if not has_parent:
        raise ConfigError(
            f"There is no folder {str(path.parent)!r} for the output. Received: "
            f"{str(path)!r}. Next: make the folder."
        )


def check_outside(output: Path, source: Any) -> None:
    """Raise if an output is inside of a folder that is the input.

    Args:
        output: Path of the output.
        source: The input: a path or a model.

    Raises:
        ConfigError: if so.
    """
    is_folder = isinstance(source, str | Path) and Path(source).is_dir()
    if is_folder and _real(source) in _real(output).parents:
        raise ConfigError(
            "The output is inside the input folder, which is never modified. "
            f"Received: {str(output)!r} in {str(source)!r}. Next: give a path outside."
        )


def check_links(folder: Path, files: Iterable[Path]) -> None:
    """Raise if a link leads out of the folder of a model.

    Links into `../../blobs` are valid: the cache of the Hugging Face Hub has them.

    Args:
        folder: The folder of the model.
        files: Files and folders in it.

    Raises:
        ModelFileError: if a link leads elsewhere or to no file.
    """
    root = _real(folder)
    homes = (root, root.parent.parent / "blobs")
    for file in files:
        target = _real(file)
        is_inside = any(target.is_relative_to(home) for home in homes)
        if not is_inside or (file.is_symlink() and not target.is_file()):
            raise ModelFileError(
                f"{str(file)!r} is a link out of the model's folder. Expected: links "
                "to files in the folder or in '../../blobs'. Received: a link to "
                f"{str(target)!r}. Next: put a copy of the file in its place."
            )


@contextmanager
def unchanged(files: Iterable[Path]) -> Generator[None, None, None]:
    """Raise at the end of the scope if a file was changed or replaced in it.

    Args:
        files: Paths of regular files, or of links to them.

    Raises:
        ModelFileError: if so.
    """
    with ExitStack() as scope:
        files_by_path = {
            path: scope.enter_context(open_regular(path, follow_link=True)).fileno()
            for path in files
        }
        before = {path: identity(file) for path, file in files_by_path.items()}
        yield
        for path, file in files_by_path.items():
            if not before[path] == identity(file) == identity(path):
                raise ModelFileError(
                    f"{str(path)!r} changed while it was read. Nothing was written. "
                    "Next: call again once the file is complete."
                )


def identity(file: Path | int) -> tuple[int, ...] | None:
    """Return device, inode, size and modification time, None if there is no file.

    Args:
        file: Path of a file, or its descriptor.
    """
    try:
        status = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))


def open_regular(path: Path, mode: str = "rb", *, follow_link: bool = False) -> IO[Any]:
    """Return a regular file, opened.

    Args:
        path: the file.
        mode: as of `open`.
        follow_link: whether a link to a regular file will do, as for one that the
            user named.

    Raises:
        OSError: if there is no such file, or it is a link, a fifo, a socket or a
            device.
    """

    def opener(name: str, flags: int) -> int:
        return _opened(name, flags | _NO_WAIT | (0 if follow_link else _NO_LINK))

    # `Path.open` takes no opener.
    return open(path, mode, opener=opener)


def read_regular(path: Path, most_bytes: int, *, follow_link: bool = False) -> bytes:
    """Return what a regular file holds.

    Args:
        path: the file.
        most_bytes: that it may hold.
        follow_link: as of `open_regular`.

    Raises:
        InputError: if it holds more.
        OSError: as of `open_regular`.
    """
    with open_regular(path, follow_link=follow_link) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InputError(
            f"The file {str(path)!r} is too large. Expected: "
            f"{format_bytes(most_bytes)} at most."
        )
    return content


def read_json_file(path: Path) -> Any:
    """Return what a file of JSON says, no link.

    Raises:
        InputError: if it is no JSON, or too large, or too deep.
        OSError: as of `open_regular`.
    """
    return read_json(read_regular(path, MOST_BYTES))


def _opened(name: str, flags: int) -> int:
    try:
        handle = os.open(name, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, and a fifo or a socket
            raise _irregular(name) from error
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise _irregular(name)


def _irregular(name: str) -> OSError:
    why = "it is a link, a folder or a device, where a regular file must be"
    return OSError(errno.EINVAL, why, name)
