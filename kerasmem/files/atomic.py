"""Writing a file whole or not at all."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kerasmem.errors import OutputError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its place at the end.

    The temporary file has the same suffix; the file that takes the place of another
    has its permissions. On any exception, also Ctrl-C, the temporary file is gone and
    whatever was at `path` is untouched. A symbolic link stays one.

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
    target = Path(path).resolve()
    temporary = target.with_name(f".{secrets.token_hex(4)}{target.suffix}")
    try:
        yield temporary
        _flush(temporary)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError as error:
        raise OutputError(
            f"Could not write {str(path)!r}: {error.strerror or error}. Nothing was "
            "written, and what was there before is untouched."
        ) from error
    finally:
        with suppress(OSError):  # where there cannot be a file there is none to remove
            temporary.unlink(missing_ok=True)


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Give a temporary folder in the folder `beside`, gone at the end."""
    with tempfile.TemporaryDirectory(dir=beside, prefix=".kerasmem-") as folder:
        yield Path(folder)


def _flush(path: Path) -> None:
    """Make sure the bytes are on the disk before the name points to them."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
