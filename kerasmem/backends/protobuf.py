"""Protocol buffer parser for large files and messages without a Python class."""

from collections.abc import Iterator
from typing import Any

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_BITS = 63


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of every field, in order.

    Values are ints for numbers (floats as bits) and memoryviews for strings and nested
    messages.

    Raises:
        ValueError: If `message` is not a valid protocol buffer.

    Example:
        >>> list(fields(memoryview(bytes([8, 150, 1]))))
        [(1, 150)]
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            size, at = _size(kind, message, at)
            content = message[at : at + size]
            if len(content) < size:
                raise ValueError(f"Truncated protocol buffer. Received: {size=}.")
            value = content if kind == _BYTES else int.from_bytes(content, "little")
            at += size
        yield key >> 3, value


class Message:
    """The fields of a protocol buffer by number. Missing fields are empty or 0."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._fields: dict[int, list[Any]] = {}
        for number, value in fields(memoryview(content)):
            self._fields.setdefault(number, []).append(value)

    def all(self, number: int) -> list[Any]:
        """Return all values of a field."""
        return self._fields.get(number, [])

    def last(self, number: int) -> Any:
        """Return the last value of a bytes field."""
        return self._fields.get(number, [b""])[-1]

    def number(self, number: int) -> int:
        """Return the last value of a number field."""
        return self._fields.get(number, [0])[-1]

    def text(self, number: int) -> str:
        """Return the last value of a string field."""
        return bytes(self.last(number)).decode()

    def numbers(self, number: int) -> tuple[int, ...]:
        """Return the values of a repeated number field, packed or not."""
        values: list[int] = []
        for value in self.all(number):
            values += [value] if isinstance(value, int) else _packed(value)
        return tuple(values)


def _packed(content: memoryview) -> list[int]:
    numbers, at = [], 0
    while at < len(content):
        number, at = _varint(content, at)
        numbers.append(number)
    return numbers


def _size(kind: int, message: memoryview, at: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(message, at)
    if kind == _FIXED64:
        return 8, at
    if kind == _FIXED32:
        return 4, at
    raise ValueError(f"Invalid protocol buffer. Received: a field of kind {kind}.")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > _MOST_BITS:
            raise ValueError("Invalid protocol buffer. Received: an endless varint.")
