"""A file that gets one line per record, so that a killed run keeps what it had."""

import os
from pathlib import Path

from kerasmem.records.regular import open_regular


class Journal:
    """Appends lines to `log_dir/name`, no link; without a `log_dir` it does nothing.

    Args:
        log_dir: folder, made when the first line comes; None for no file.
        name: name of the file.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None, name: str) -> None:
        self._path = None if log_dir is None else Path(log_dir) / name
        self._may_be_cut_off = True

    def append(self, line: str) -> None:
        """Write one line through to the file.

        Raises:
            OSError: if it cannot be written.
        """
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        begin = "\n" if self._may_be_cut_off and _is_cut_off(self._path) else ""
        self._may_be_cut_off = True
        with open_regular(self._path, "ab") as file:
            file.write(f"{begin}{line}\n".encode())
        self._may_be_cut_off = False


def _is_cut_off(path: Path) -> bool:
    """Return True if the file ends within a line: of a killed run, or a full disk."""
    if not path.exists() or not path.stat().st_size:
        return False
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
