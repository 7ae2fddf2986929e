"""Writing a file whole or not at all."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kerasmem.errors import OutputError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl: Any = None

_PREFIX = ".kerasmem-saving-"
_YOUNG_SECONDS = 60.0
"""So long a folder may be there before its process holds it."""


@contextmanager
def replacing(path: str | Path, *, follow_link: bool = True) -> Iterator[Path]:
    """Give a temporary path in a folder beside `path` that takes its place at the end.

    The temporary file has the same suffix, and its folder has room for more; the file
    that takes the place of another has its permissions. On any exception, also Ctrl-C,
    the folder is gone and whatever was at `path` is untouched; one that was left by a
    process that was killed goes with the next file.

    Args:
        path: the file.
        follow_link: True if a symbolic link at `path` stays one, and what it leads to
            is replaced; False to replace the link, in a folder that is not the user's
            own to link from.

    Raises:
        OutputError: if the file cannot be written, such as on a full disk.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with replacing(folder / "a.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> [p.name for p in folder.iterdir()]
        ['a.txt']
    """
    target = _target(Path(path), follow_link=follow_link)
    outcome = "Nothing was written, and what was there before is untouched."
    with writing(path, outcome), held_folder(target.parent) as folder:
        temporary = folder / f"new{target.suffix}"
        yield temporary
        _flush(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder beside `path` that gets its name at the end.

    On any exception it is gone, and nothing is at `path`.

    Args:
        path: where there is nothing, or an empty folder.

    Raises:
        OutputError: if the folder cannot be written, such as on a full disk.
    """
    target = _target(Path(path), follow_link=False)
    with writing(path, "Nothing was written."), held_folder(target.parent) as room:
        temporary = room / target.name
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        if target.is_dir():
            target.rmdir()
        temporary.rename(target)


@contextmanager
def writing(path: str | Path, outcome: str) -> Iterator[None]:
    """Raise `OutputError` in place of each `OSError`.

    Args:
        path: Path of the output, for the message.
        outcome: State of the files after the error, for the message.
    """
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error).rstrip(".")
        raise OutputError(
            f"Could not write {str(path)!r}: {reason}. {outcome}"
        ) from error


def _target(path: Path, *, follow_link: bool) -> Path:
    try:
        return path.resolve() if follow_link else path.parent.resolve() / path.name
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"Could not write {str(path)!r}: {error}.") from error


@contextmanager
def held_folder(parent: Path) -> Iterator[Path]:
    """Give a temporary folder that is held while there is a process that uses it.

    Those that processes left which were killed are removed.

    Args:
        parent: the folder to make it in.
    """
    _remove_left(parent)
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix=_PREFIX) as folder,
        held(Path(folder)),
    ):
        yield Path(folder)


def _remove_left(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # Another process may be removing it as well.
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
                continue
            with held(folder) as is_free:
                if is_free:
                    shutil.rmtree(folder)


@contextmanager
def held(folder: Path) -> Iterator[bool | None]:
    """Lock a folder, until the context or the process ends.

    Args:
        folder: An existing folder.

    Yields:
        `True` if the folder is locked, `False` if another process has locked it, `None`
        if the system cannot lock folders.
    """
    if fcntl is None:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError:
            yield None
        else:
            yield True
    finally:
        os.close(handle)


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
