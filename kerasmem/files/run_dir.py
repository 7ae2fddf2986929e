"""The folder that the monitors of a run write into, and what is in it.

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

from pathlib import Path


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
