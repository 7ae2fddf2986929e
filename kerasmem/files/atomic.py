"""Writing a file whole or not at all."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kerasmem.errors import OutputError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its place at the end.

    The temporary file has the same suffix. On any exception, also Ctrl-C, it is gone
    and whatever was at `path` is untouched.

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
    path = Path(path)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"Could not write {str(path)!r}: {error.strerror or error}. Nothing was "
            "written, and what was there before is untouched."
        ) from error
    finally:
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
