"""How the bytes of a deflated stream share out among what they become."""

import zlib
from collections.abc import Sequence
from typing import BinaryIO

_PIECE = 1 << 12


def deflated_places(
    file: BinaryIO, start: int, size: int, marks: Sequence[int]
) -> dict[int, int]:
    """Return how many bytes of a stream are read when it has given so many.

    Args:
        file: open to read bytes.
        start: where in it the raw stream begins.
        size: bytes of the stream.
        marks: numbers of inflated bytes.

    Returns:
        The number of deflated bytes by each mark, from 0 to `size`.
    """
    return _Walk(marks, size).through(file, start)


class _Walk:
    def __init__(self, marks: Sequence[int], size: int) -> None:
        self._ahead = sorted(set(marks), reverse=True)
        self._size, self._read, self._given = size, 0, 0
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._places: dict[int, int] = {}

    def through(self, file: BinaryIO, start: int) -> dict[int, int]:
        self._reached(0)
        file.seek(start)
        while self._ahead and self._read < self._size:
            self._take(file.read(min(_PIECE, self._size - self._read)))
        # What is left lies behind the end.
        return self._places | dict.fromkeys(self._ahead, self._size)

    def _take(self, piece: bytes) -> None:
        """Inflate a piece; in halves, as long as it holds a mark."""
        before = self._inflate.copy()
        given = self._given + len(self._inflate.decompress(piece))
        if len(piece) > 1 and self._ahead and self._ahead[-1] <= given:
            self._inflate = before
            middle = len(piece) // 2
            self._take(piece[:middle])
            self._take(piece[middle:])
            return
        self._given = given
        self._read += len(piece)
        self._reached(self._read)

    def _reached(self, place: int) -> None:
        while self._ahead and self._ahead[-1] <= self._given:
            self._places[self._ahead.pop()] = place
