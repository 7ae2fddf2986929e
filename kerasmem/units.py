"""Formats bytes, times and numbers, and parses bytes.

Binary prefixes are used throughout: 1 KiB = 1024 bytes.
"""

import re
from decimal import Decimal

from kerasmem.checks import Whole, invalid

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_FACTORS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024**4}
_MOST_BYTES = 1 << 63
_BYTES = Whole(0, _MOST_BYTES - 1)
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def format_bytes(size: int) -> str:
    """Formats bytes with three significant digits.

    Example:
        >>> format_bytes(1536)
        '1.50 KiB'
        >>> format_bytes(12)
        '12 B'
    """
    if abs(size) < KIB:
        return f"{size} B"
    value, unit = float(size), "B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):  # noqa: B007
        value /= 1024
        if abs(value) < 999.5:
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f} {unit}"


def format_number(value: float) -> str:
    """Formats a number with three significant digits and no exponent.

    Example:
        >>> format_number(1234.5), format_number(20.0), format_number(0.01234)
        ('1,234', '20.0', '0.0123')
    """
    if abs(value) >= 999.5 or not value:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:#.3g}'):f}"


def format_ms(milliseconds: float) -> str:
    """Formats milliseconds. Times of at least one second are shown in seconds.

    Example:
        >>> format_ms(1000.0), format_ms(20.5), format_ms(3_600_000)
        ('1.00 s', '20.5 ms', '3,600 s')
    """
    if milliseconds >= 999.5:
        return f"{format_number(milliseconds / 1000)} s"
    return f"{format_number(milliseconds)} ms"


def parse_bytes(size: int | str, owner: str = "parse_bytes", name: str = "size") -> int:
    """Returns a size in bytes from an integer or a string such as `"8GiB"`.

    Messages contain the function or class `owner` and its argument `name`.

    Raises:
        ConfigError: If the text is no size, or the size is negative or at least 2^63.

    Example:
        >>> parse_bytes("1.5 KiB")
        1536
    """
    if not isinstance(size, str):
        return _BYTES.check(owner, name, size)
    match = _SIZE.fullmatch(size)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        valid = (
            "a number of bytes, or a text with one of the units B, KiB, MiB, GiB, TiB, "
            "such as '8GiB'"
        )
        raise invalid(owner, name, size, valid)
    size = round(min(float(match[1]), _MOST_BYTES) * factor)
    return _BYTES.check(owner, name, size)


def to_mib(size: int) -> float:
    """Converts bytes to MiB."""
    return size / MIB
