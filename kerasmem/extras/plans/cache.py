"""On-disk cache of plans, because compiling takes seconds to minutes.

Files are in `kerasmem/plans` of the user's cache folder (`XDG_CACHE_HOME`, or else
`~/.cache`). The name of each is a hash of all inputs of the plan. The oldest files are
deleted.
"""

import hashlib
import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from kerasmem.errors import InputError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.records.regular import read_regular
from kerasmem.units import MIB

_MOST_FILES = 64
_KEY = re.compile("[0-9a-f]{64}")
_MOST_BYTES = 256 * MIB
"""Maximum size of a plan, which is text of a few MiB."""


def key(*parts: Any) -> str:
    """Return a hash of bytes, strings and numbers.

    Example:
        >>> key(b"a", 1) == key(b"a", 1), key(b"a", 1) == key(b"a1")
        (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def read(name: str) -> bytes | None:
    """Return the cached content of a key, or None if missing or incomplete."""
    path, inflate = _folder() / name, zlib.decompressobj()
    try:
        content = inflate.decompress(read_regular(path, _MOST_BYTES), _MOST_BYTES)
    except (OSError, InputError, zlib.error):
        return None
    if not inflate.eof:
        return None
    with suppress(OSError):
        path.touch()
    return content


def write(name: str, content: bytes) -> None:
    """Cache content under a key. File errors are ignored."""
    folder = _folder()
    with suppress(OSError, OutputError):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name, follow_link=False) as part:
            part.write_bytes(zlib.compress(content, 1))
        plans = [path for path in folder.iterdir() if _KEY.fullmatch(path.name)]
        newest = sorted(plans, key=_when, reverse=True)
        for path in newest[_MOST_FILES:]:
            path.unlink(missing_ok=True)


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "kerasmem", "plans")


def _when(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process deleted the file
        return 0.0
