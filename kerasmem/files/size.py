"""What a saved model takes on the disk."""

from pathlib import Path


def stored_bytes(path: str | Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    path = Path(path)
    return sum(file_sizes(path).values()) if path.is_dir() else path.stat().st_size


def file_sizes(folder: Path) -> dict[Path, int]:
    """Return the bytes of every file in a folder and the folders within, in order."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file: file.stat().st_size for file in files}
