"""Access to regular files in directories with untrusted content.

A symbolic link in a cache or run directory could redirect a reader or writer to another
file. A FIFO would block the process.
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

# Windows has neither flag.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)


def check_output(path: Path, suffix: str) -> None:
    """Raises `ConfigError` unless a file with this suffix can be written to `path`."""
    if path.suffix != suffix:
        raise ConfigError(f"The output must end in {suffix}. Received: {str(path)!r}.")
    check_parent(path)
    if path.is_dir():
        raise ConfigError(f"The output is a folder. Received: {str(path)!r}.")


def check_parent(path: Path) -> None:
    """Raises `ConfigError` unless the directory exists and the file name is valid."""
    try:
        path.resolve()
        path.exists()
        has_parent = path.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"The output path is invalid: {reason}. Received: {str(path)!r}. Next: "
            "choose another name."
        ) from error
    if not has_parent:
        raise ConfigError(
            f"There is no folder {str(path.parent)!r} for the output. Received: "
            f"{str(path)!r}. Next: create the folder."
        )


def check_outside(output: Path, source: Any) -> None:
    """Raises `ConfigError` if an output is inside an input directory."""
    is_folder = isinstance(source, str | Path) and Path(source).is_dir()
    if is_folder and _real(source) in _real(output).parents:
        raise ConfigError(
            "The output is inside the input folder, which is never modified. "
            f"Received: {str(output)!r} in {str(source)!r}. Next: use a path outside."
        )


def check_links(folder: Path, files: Iterable[Path]) -> None:
    """Raises `ModelFileError` if a symbolic link points out of a model's directory.

    Links into `../../blobs` are valid, as in the cache of the Hugging Face Hub.
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
                f"{str(target)!r}. Next: replace the link with a copy of the file."
            )


@contextmanager
def unchanged(files: Iterable[Path]) -> Generator[None, None, None]:
    """Raises `ModelFileError` at the end of its scope if a file was changed."""
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
    """Returns device, inode, size and modification time, or `None` without a file."""
    try:
        status = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))


def open_regular(path: Path, mode: str = "rb", *, follow_link: bool = False) -> IO[Any]:
    """Opens a regular file. Raises `OSError` for other kinds of files.

    Args:
        path: Path of the file.
        mode: Mode as for `open`. Defaults to `"rb"`.
        follow_link: Whether to follow a link, as for paths from the user. Defaults to
            `False`.
    """

    def opener(name: str, flags: int) -> int:
        return _opened(name, flags | _NO_WAIT | (0 if follow_link else _NO_LINK))

    # `Path.open` has no `opener` argument.
    return open(path, mode, opener=opener)


def read_regular(path: Path, most_bytes: int, *, follow_link: bool = False) -> bytes:
    """Returns the content of a regular file. See `open_regular`.

    Raises `InputError` if the file has more than `most_bytes`.
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
    """Returns the parsed content of a JSON file. Links are not followed.

    Raises `InputError` if the content is no JSON, too large or nested too deeply.
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
    why = "expected a regular file; it is a link, a folder or a device"
    return OSError(errno.EINVAL, why, name)
