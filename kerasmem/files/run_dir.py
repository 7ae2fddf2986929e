"""The folder of a run: names of its files, journals of a line each.

| file | what it is |
|---|---|
| `run.json` | one `RunInfo` |
| `memory.jsonl` | a `MemoryRecord` per line |
| `gradients.jsonl` | a `GradientRecord` per line |
| `findings.jsonl` | a `Finding` per line |
| `post_mortems.jsonl` | a `PostMortem` per line |
| `timeline-0000.json.gz` | the `Timeline`s of one window, one per line |

Process 0 of a run writes these; process 1 writes `memory-p1.jsonl` and so on.
"""

import os
from pathlib import Path

from kerasmem.records import PostMortem
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


def add_post_mortem(
    log_dir: str | os.PathLike[str] | None, post_mortem: PostMortem
) -> None:
    """Write a post-mortem into a run's folder, behind those that are there.

    Args:
        log_dir: the folder, made if it is not there; None for no folder.
        post_mortem: the post-mortem.

    Raises:
        OSError: if it cannot be written.
    """
    name = file_name("post_mortems", ".jsonl", post_mortem.process)
    Journal(log_dir, name).append(post_mortem.to_json())


def file_name(stem: str, suffix: str, process: int = 0) -> str:
    """Return the name of a file in a run's folder.

    Args:
        stem: such as `"memory"`.
        suffix: such as `".jsonl"`.
        process: index of the process that writes it, from 0.

    Example:
        >>> file_name("memory", ".jsonl"), file_name("memory", ".jsonl", process=1)
        ('memory.jsonl', 'memory-p1.jsonl')
    """
    return f"{stem}-p{process}{suffix}" if process else f"{stem}{suffix}"


def run_name(folder: Path) -> str:
    """Return the name of a run's folder, with `?` for what is no text in it."""
    return folder.resolve().name.encode(errors="replace").decode()
