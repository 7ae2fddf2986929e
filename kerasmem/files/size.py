"""Which files a saved model lies in, and what they take on the disk."""

from pathlib import Path

from kerasmem.errors import InputError, ModelFileError
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.records.regular import read_regular

_SHARDED = ".weights.json"


def is_weights_alone(path: Path) -> bool:
    """Return whether a file has weights, by its name, and no model."""
    return path.name.endswith((".weights.h5", _SHARDED))


def shards_of(path: Path) -> list[Path]:
    """Return the files that weights lie in, see `is_weights_alone`.

    Raises:
        ModelFileError: if one is missing, or lies in another folder.
    """
    if not path.name.endswith(_SHARDED):
        return [path]
    try:
        found = read_json(read_regular(path, MOST_BYTES, follow_link=True))
        parts = [*found["weight_map"].values()]
        lists = (part if isinstance(part, list) else [part] for part in parts)
        names = dict.fromkeys(str(name) for each in lists for name in each)
    except (InputError, OSError, LookupError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{str(path)!r} does not tell which files the weights are in. Expected: "
            "what model.save_weights wrote, with a weight_map."
        ) from error
    for name in names:
        if Path(name).name != name or not path.with_name(name).is_file():
            raise ModelFileError(
                f"{str(path)!r} names the file {name!r}, which is not beside it."
            )
    return [path.with_name(name) for name in names]


def stored_bytes(path: str | Path) -> int:
    """Return the bytes of a file with its shards, or of all files in a folder."""
    path = Path(path)
    if path.is_dir():
        return sum(file_sizes(path).values())
    files = {path, *shards_of(path)} if is_weights_alone(path) else {path}
    return sum(file.stat().st_size for file in files)


def file_sizes(folder: Path) -> dict[Path, int]:
    """Return the bytes of every file in a folder and the folders within, in order."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file: file.stat().st_size for file in files}
