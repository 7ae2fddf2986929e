"""How often each symbol comes, in whole numbers that a decoder can share."""

import zlib

import numpy as np

from kerasmem.files.coding.stream import Reader, Writer, damaged

BITS = 14
_TOTAL = 1 << BITS

MOST_SYMBOLS = 1 << 12


class Frequencies:
    """Frequencies of symbols, for each context, that add up to 2^14.

    Args:
        table: of the shape (contexts, symbols), each row with the sum 2^14.
    """

    def __init__(self, table: np.ndarray) -> None:
        self.table = table.astype(np.uint64)
        self._before = np.cumsum(self.table, axis=1) - self.table
        self._symbols: np.ndarray | None = None

    @classmethod
    def counted(cls, counts: np.ndarray) -> "Frequencies":
        """Return frequencies near counts, never 0 where a count is not.

        Args:
            counts: how often each symbol comes, of the shape (contexts, symbols).
        """
        return cls(np.stack([_scaled(row) for row in counts]))

    def of(self, context: np.ndarray | int, symbols: np.ndarray) -> tuple:
        """Return the frequencies of symbols, and of all symbols before each."""
        return self.table[context, symbols], self._before[context, symbols]

    def symbols_at(self, context: np.ndarray | int, place: np.ndarray) -> np.ndarray:
        """Return the symbols whose frequencies reach over places below 2^14."""
        if self.table.shape[1] == 2:
            return (place >= self._before[context, 1]).astype(np.uint16)
        if self._symbols is None:
            numbers = np.arange(self.table.shape[1], dtype=np.uint16)
            rows = [np.repeat(numbers, row.astype(np.int64)) for row in self.table]
            self._symbols = np.stack(rows)
        return self._symbols[context, place]

    def code_bytes(self, counts: np.ndarray) -> float:
        """Return the bytes that symbols with such counts take."""
        come = counts > 0
        bits = BITS - np.log2(self.table[come].astype(float))
        return float((counts[come] * bits).sum() / 8)

    def write(self, out: Writer) -> None:
        """Write them, without the last of each row, which follows from the others."""
        out.block(zlib.compress(self.table[:, :-1].astype("<u2").tobytes(), 9))

    @classmethod
    def read(cls, source: Reader, contexts: int, symbols: int) -> "Frequencies":
        """Return what `write` wrote.

        Raises:
            ModelFileError: if it is not that.
        """
        expected = 2 * contexts * (symbols - 1)
        try:
            unpack = zlib.decompressobj()
            content = unpack.decompress(source.block(), expected + 1)
        except zlib.error as error:
            raise damaged("its frequencies cannot be read") from error
        if len(content) != expected:
            raise damaged("its frequencies have another number")
        table = np.empty((contexts, symbols), np.int64)
        table[:, :-1] = np.frombuffer(content, "<u2").reshape(contexts, symbols - 1)
        table[:, -1] = _TOTAL - table[:, :-1].sum(axis=1)
        if table.min() < 0:
            raise damaged("its frequencies add up to too much")
        return cls(table)


def _scaled(counts: np.ndarray) -> np.ndarray:
    """Return whole numbers with the sum 2^14, near to proportional to counts."""
    come = np.flatnonzero(counts)
    scaled = np.zeros(counts.size, np.int64)
    if not come.size:
        scaled[0] = _TOTAL
        return scaled
    exact = counts[come] * (_TOTAL / counts[come].sum())
    scaled[come] = np.maximum(exact, 1).astype(np.int64)
    while (over := scaled.sum() - _TOTAL) != 0:
        # The most frequent symbols lose or gain least by one more or less.
        largest = np.argpartition(scaled, -min(abs(over), come.size))
        some = largest[-min(abs(over), come.size) :]
        some = some[scaled[some] > 1] if over > 0 else some
        scaled[some] -= np.sign(over)
    return scaled
