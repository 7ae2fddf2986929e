"""Symbols with their frequencies."""

import numpy as np

from kerasmem.files.coding import rans
from kerasmem.files.coding.rans import Frequencies
from kerasmem.files.coding.stream import Reader, Writer, damaged


class Symbols:
    """Symbols that are to be written, and what they take.

    Args:
        symbols: whole numbers of the shape (count,).
        alphabet: one more than the largest that there could be.
        contexts: which of `number` contexts each symbol stands in; None for one.
        number: the number of contexts.

    Attributes:
        coded_bytes: about how many bytes they take, with their frequencies.
    """

    def __init__(
        self,
        symbols: np.ndarray,
        alphabet: int,
        contexts: np.ndarray | None = None,
        number: int = 1,
    ) -> None:
        self._symbols = symbols.astype(np.uint16, copy=False)
        contexts = contexts if number > 1 else None
        self._contexts = contexts
        place = symbols
        if contexts is not None:
            place = contexts.astype(np.intp) * alphabet + symbols
        counts = np.bincount(place, minlength=number * alphabet)
        counts = counts.reshape(number, alphabet)
        self._frequencies = Frequencies.counted(counts)
        self._table = Writer()
        self._frequencies.write(self._table)
        self._code_bytes = self._frequencies.code_bytes(counts)
        self.coded_bytes = self._code_bytes + len(self._table.content())

    def write(self, out: Writer) -> None:
        """Write the frequencies and the symbols."""
        width = rans.lanes(self._symbols.size, self._code_bytes, out.whole_bytes)
        code = rans.encode(self._symbols, self._contexts, self._frequencies, width)
        out.raw(self._table.content())
        out.number(width)
        out.block(code)


def read(
    source: Reader,
    count: int,
    alphabet: int,
    contexts: np.ndarray | None = None,
    number: int = 1,
) -> np.ndarray:
    """Return what `Symbols` wrote, of the shape (count,) and type uint16.

    Args:
        source: where from.
        count: the number of symbols.
        alphabet: as it was.
        contexts: as they were.
        number: as it was.
    """
    contexts = contexts if number > 1 else None
    frequencies = Frequencies.read(source, number, alphabet)
    width = source.number()
    if not rans.least_lanes(count) <= width <= max(count, 1):
        raise damaged("it tells a number that cannot be")
    return rans.decode(source.block(), count, contexts, frequencies, width)
