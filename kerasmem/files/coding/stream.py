"""Numbers and blocks of bytes, one after the other."""

import numpy as np

from kerasmem.errors import ModelFileError


def damaged(what: str) -> ModelFileError:
    """Return the error for a stream that does not hold what it tells."""
    return ModelFileError(f"The coded weights in the file are damaged: {what}.")


class StreamWriter:
    """Collects numbers and blocks.

    Attributes:
        whole_bytes: about how many bytes it will hold, 0 where that is not known.
    """

    def __init__(self) -> None:
        self.whole_bytes = 0.0
        self._parts: list[bytes] = []

    def number(self, value: int) -> None:
        """Add a whole number >= 0, 7 bits a byte, the low ones first."""
        while value > 127:
            self._parts.append(bytes([value & 127 | 128]))
            value >>= 7
        self._parts.append(bytes([value]))

    def block(self, content: bytes) -> None:
        """Add bytes, after their number."""
        self.number(len(content))
        self._parts.append(content)

    def raw(self, content: bytes) -> None:
        """Add bytes whose number is told otherwise."""
        self._parts.append(content)

    def content(self) -> bytes:
        """Return all of it."""
        return b"".join(self._parts)


class StreamReader:
    """Gives back what a `StreamWriter` collected, in its order.

    Args:
        content: bytes of a writer.

    Raises:
        ModelFileError: by every method, if the content ends too early.
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
                raise damaged("a number has no end")

    def block(self) -> memoryview:
        """Return the next block."""
        return self._bytes(self.number())

    def array(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Return the next `count` entries, read-only."""
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype)

    def finish(self) -> None:
        """Check that nothing is left."""
        if self._at != len(self._content):
            raise damaged("something follows behind its end")

    def _bytes(self, count: int) -> memoryview:
        block = self._content[self._at : self._at + count]
        if len(block) != count:
            raise damaged("it ends too early")
        self._at += count
        return block
