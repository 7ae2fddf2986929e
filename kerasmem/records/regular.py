"""Regular files and nothing else, in folders that anybody may have written to.

A link in a cache or in the folder of a run would lead a reader, or worse a writer, to a
file elsewhere; a fifo would keep it waiting for ever.
"""

import errno
import os
import stat
from pathlib import Path
from typing import IO, Any

from kerasmem.errors import ConfigError, InputError
from kerasmem.records.plain import MOST_BYTES, read_json
from kerasmem.units import format_bytes

# Neither is there on Windows, where a file is what its name says.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)


def check_output(path: Path, suffix: str) -> None:
    """Raise unless a file can be made at `path`; long work should not end in this.

    Raises:
        ConfigError: if the suffix is another, or the folder is missing.
    """
    if path.suffix != suffix:
        raise ConfigError(f"The output must end in {suffix}. Received: {str(path)!r}.")
    if not path.parent.is_dir():
        raise ConfigError(
            f"There is no folder {str(path.parent)!r} for the output. Received: "
            f"{str(path)!r}. Next: make the folder."
        )
    try:
        path.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"The output leads round in a circle of links. Received: {str(path)!r}."
        ) from error
    if path.is_dir():
        raise ConfigError(f"The output is a folder. Received: {str(path)!r}.")


def open_regular(path: Path, mode: str = "rb", *, follow_link: bool = False) -> IO[Any]:
    """Return a regular file, opened.

    Args:
        path: the file.
        mode: as of `open`.
        follow_link: whether a link to a regular file will do, as for one that the
            user named.

    Raises:
        OSError: if there is no such file, or it is a link, a fifo, a socket or a
            device.
    """

    def opener(name: str, flags: int) -> int:
        return _opened(name, flags | _NO_WAIT | (0 if follow_link else _NO_LINK))

    # `Path.open` takes no opener.
    return open(path, mode, opener=opener)


def read_regular(path: Path, most_bytes: int, *, follow_link: bool = False) -> bytes:
    """Return what a regular file holds.

    Args:
        path: the file.
        most_bytes: that it may hold.
        follow_link: as of `open_regular`.

    Raises:
        InputError: if it holds more.
        OSError: as of `open_regular`.
    """
    with open_regular(path, follow_link=follow_link) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InputError(
            f"The file {str(path)!r} is too large. Expected: "
            f"{format_bytes(most_bytes)} at most."
        )
    return content


def read_json_file(path: Path) -> Any:
    """Return what a file of JSON says, no link.

    Raises:
        InputError: if it is no JSON, or too large, or too deep.
        OSError: as of `open_regular`.
    """
    return read_json(read_regular(path, MOST_BYTES))


def _opened(name: str, flags: int) -> int:
    try:
        handle = os.open(name, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, and a fifo or a socket
            raise _irregular(name) from error
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise _irregular(name)


def _irregular(name: str) -> OSError:
    why = "it is a link, a folder or a device, where a regular file must be"
    return OSError(errno.EINVAL, why, name)
