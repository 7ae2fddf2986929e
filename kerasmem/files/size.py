"""What a saved model takes on the disk."""

from pathlib import Path


def stored_bytes(path: str | Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    path = Path(path)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
