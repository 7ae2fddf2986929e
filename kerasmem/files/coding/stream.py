"""Streams of numbers and byte blocks."""

import numpy as np

from kerasmem.errors import ModelFileError


def damaged(what: str) -> ModelFileError:
    """Returns the error for an invalid stream."""
    return ModelFileError(f"The coded weights in the file are damaged: {what}.")


class StreamWriter:
    """Collects numbers and blocks.

    `whole_bytes` is the estimated total size in bytes, or 0 if unknown.
    """

    def __init__(self) -> None:
        self.whole_bytes = 0.0
        self._parts: list[bytes] = []

    def number(self, value: int) -> None:
        """Adds a nonnegative integer as a little-endian base-128 varint."""
        while value > 127:
            self._parts.append(bytes([value & 127 | 128]))
            value >>= 7
        self._parts.append(bytes([value]))

    def block(self, content: bytes) -> None:
        """Adds bytes, preceded by their length."""
        self.number(len(content))
        self._parts.append(content)

    def raw(self, content: bytes) -> None:
        """Adds bytes without their length."""
        self._parts.append(content)

    def content(self) -> bytes:
        """Returns the collected bytes."""
        return b"".join(self._parts)


class StreamReader:
    """Reads the content of a `StreamWriter` in order.

    All methods raise `ModelFileError` if the content ends too early.
    """

    def __init__(self, content: bytes | memoryview) -> None:
        self._content = memoryview(content)
        self._at = 0

    def number(self) -> int:
        """Return the next number."""
        value = shift = 0
        while True:
            byte = self._bytes(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise damaged("a number is too long")

    def block(self) -> memoryview:
        """Return the next block."""
        return self._bytes(self.number())

    def array(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Return the next `count` entries, read-only."""
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype)

    def finish(self) -> None:
        """Raises an error if unread bytes remain."""
        if self._at != len(self._content):
            raise damaged("unexpected bytes at the end")

    def _bytes(self, count: int) -> memoryview:
        block = self._content[self._at : self._at + count]
        if len(block) != count:
            raise damaged("unexpected end")
        self._at += count
        return block
