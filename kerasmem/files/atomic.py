"""Atomic writing of files and directories."""

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
"""Age in seconds up to which an unlocked directory may still be in use."""


@contextmanager
def replacing(path: str | Path, *, follow_link: bool = True) -> Iterator[Path]:
    """Context manager for atomic writing. Yields a temporary path.

    At the end, the temporary file replaces `path` and takes over the permissions of an
    existing file. Its directory, next to `path`, may contain further files. On any
    exception, including `KeyboardInterrupt`, the directory is removed and `path`
    remains unchanged. Directories of killed processes are removed by the next call.

    Args:
        path: Path of the file.
        follow_link: Whether to replace the target of a symbolic link. If `False`, the
            link is replaced, as needed in directories not owned by the user.

    Raises:
        OutputError: If the file cannot be written, for example on a full disk.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with replacing(folder / "a.txt") as temporary:
        ...     _ = temporary.write_text("whole")
        >>> [p.name for p in folder.iterdir()]
        ['a.txt']
    """
    target = _target(Path(path), follow_link=follow_link)
    # `Path.exists` raises an error for a long name.
    ending = ", and the existing file is unchanged" * os.path.exists(target)  # noqa: PTH110
    outcome = f"Nothing was written{ending}."
    with writing(path, outcome), held_folder(target.parent) as folder:
        temporary = folder / f"new{target.suffix}"
        yield temporary
        _flush(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Context manager for an atomically created directory. Yields a temporary path.

    At the end, the temporary directory is renamed to `path`, which must be missing or
    an empty directory. On any exception, it is removed. Raises `OutputError` if writing
    fails.
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
    """Converts `OSError` to `OutputError`, which reports `path` and the `outcome`."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error).rstrip(".")
        folder = Path(path).parent
        if isinstance(error, FileNotFoundError) and not folder.is_dir():
            outcome = f"Nothing was written. Next: create the folder {str(folder)!r}."
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
    """Creates a temporary directory in `parent` that is locked while it is in use.

    Also removes the directories of killed processes.
    """
    _remove_left(parent)
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix=_PREFIX) as folder,
        held(Path(folder)),
    ):
        yield Path(folder)


def _remove_left(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # Another process may remove the folder at the same time.
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
                continue
            with held(folder) as is_free:
                if is_free:
                    shutil.rmtree(folder)


@contextmanager
def held(folder: Path) -> Iterator[bool | None]:
    """Locks an existing directory until the end of the context or of the process.

    Yields `True` if the directory is locked, `False` if another process has locked it,
    and `None` if the system cannot lock directories.
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
