"""Symbols with their frequencies."""

import zlib
from typing import Any

import numpy as np

from kerasmem.files.coding.stream import StreamReader, StreamWriter, damaged

BITS = 14
TOTAL = 1 << BITS

MOST_SYMBOLS = 1 << 12


class Frequencies:
    """Frequencies of symbols, for each context, that add up to 2^14.

    Args:
        table: of the shape (contexts, symbols), each row with the sum 2^14.
    """

    def __init__(self, table: np.ndarray) -> None:
        self.table = table.astype(np.uint32)
        self._before = (np.cumsum(self.table, axis=1) - self.table).astype(np.uint32)

    @classmethod
    def counted(cls, counts: np.ndarray) -> "Frequencies":
        """Return frequencies near counts, never 0 where a count is not.

        Args:
            counts: how often each symbol comes, of the shape (contexts, symbols).
        """
        return cls(np.stack([_scaled(row) for row in counts]))

    def of(self, context: np.ndarray | int, symbols: np.ndarray) -> tuple:
        """Return the frequencies of symbols, and of all symbols before each."""
        if self.table.shape[1] == 2:
            zeros = self.table[context, 0]
            return np.where(symbols, TOTAL - zeros, zeros), np.where(symbols, zeros, 0)
        if isinstance(context, int):
            return self.table[context].take(symbols), self._before[context].take(
                symbols
            )
        return self.table[context, symbols], self._before[context, symbols]

    def reader(self, contexts: np.ndarray | None, count: int) -> "_Flags | _Places":
        """Return what finds `count` symbols by places below 2^14."""
        if self.table.shape[1] == 2:
            return _Flags(self.table[:, 0], contexts, count)
        return _Places(self.table, self._before, contexts, count)

    def code_bytes(self, counts: np.ndarray) -> float:
        """Return the bytes that symbols with such counts take."""
        come = counts > 0
        bits = BITS - np.log2(self.table[come].astype(float))
        return float((counts[come] * bits).sum() / 8)

    def write(self, out: StreamWriter) -> None:
        """Write them, without the last of each row, which follows from the others."""
        out.block(zlib.compress(self.table[:, :-1].astype("<u2").tobytes(), 9))

    @classmethod
    def read(cls, source: StreamReader, contexts: int, symbols: int) -> "Frequencies":
        """Return what `write` wrote.

        Raises:
            ModelFileError: if it is not that.
        """
        size = 2 * contexts * (symbols - 1)
        try:
            unpack = zlib.decompressobj()
            content = unpack.decompress(source.block(), size + 1)
        except zlib.error as error:
            raise damaged("its frequencies cannot be read") from error
        if len(content) != size:
            raise damaged("its frequencies have another number")
        table = np.empty((contexts, symbols), np.int64)
        table[:, :-1] = np.frombuffer(content, "<u2").reshape(contexts, symbols - 1)
        table[:, -1] = TOTAL - table[:, :-1].sum(axis=1)
        if table.min() < 0:
            raise damaged("its frequencies add up to too much")
        return cls(table)


class _Flags:
    """Two symbols for each context, found by a comparison."""

    def __init__(self, zeros: np.ndarray, contexts: Any, count: int) -> None:
        self._zeros, self._contexts = zeros, contexts
        self._flags = np.empty(count, bool)

    def at(self, row: slice, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the frequency of each symbol, and how far its place is into it."""
        zeros = self._zeros[0 if self._contexts is None else self._contexts[row]]
        is_set = np.greater_equal(place, zeros, out=self._flags[row])
        often = np.where(is_set, TOTAL - zeros, zeros)
        return often, place - np.where(is_set, zeros, 0)

    def symbols(self) -> np.ndarray:
        """Return all symbols, of type uint16."""
        return self._flags.astype(np.uint16)


class _Places:
    """Symbols found by a table of 2^14 places for each context."""

    def __init__(
        self, often: np.ndarray, before: np.ndarray, contexts: Any, count: int
    ) -> None:
        numbers = np.arange(often.shape[1], dtype=np.uint16)
        self._symbols = np.stack([np.repeat(numbers, row) for row in often])
        first = np.take_along_axis(before, self._symbols.astype(np.intp), axis=1)
        offset = np.arange(TOTAL, dtype=np.uint32) - first
        often = np.take_along_axis(often, self._symbols.astype(np.intp), axis=1)
        self._slots = often << np.uint32(BITS) | offset
        self._contexts = contexts
        # Without contexts a place takes 14 bits, and its symbol has room there.
        self._places = np.empty(count, np.uint16 if contexts is None else np.uint32)

    def at(self, row: slice, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the frequency of each symbol, and how far its place is into it."""
        if self._contexts is not None:
            place += self._contexts[row] * np.uint32(TOTAL)
        self._places[row] = place
        slot = self._slots.take(place)
        return slot >> np.uint32(BITS), slot & np.uint32(TOTAL - 1)

    def symbols(self) -> np.ndarray:
        """Return all symbols, of type uint16."""
        for begin in range(0, self._places.size, _AT_ONCE):
            part = self._places[begin : begin + _AT_ONCE]
            part[:] = self._symbols.take(part)
        return self._places.astype(np.uint16, copy=False)


def _scaled(counts: np.ndarray) -> np.ndarray:
    come = np.flatnonzero(counts)
    whole_numbers = np.zeros(counts.size, np.int64)
    if not come.size:
        whole_numbers[0] = TOTAL
        return whole_numbers
    exact = counts[come] * (TOTAL / counts[come].sum())
    whole_numbers[come] = np.maximum(exact, 1).astype(np.int64)
    while (over := whole_numbers.sum() - TOTAL) != 0:
        # The most frequent symbols lose or gain least by one more or less.
        largest = np.argpartition(whole_numbers, -min(abs(over), come.size))
        some = largest[-min(abs(over), come.size) :]
        some = some[whole_numbers[some] > 1] if over > 0 else some
        whole_numbers[some] -= np.sign(over)
    return whole_numbers


_LOWEST = 1 << 16
"""A state is at least that; below, it takes in a word of 16 bits."""

_MOST_LANES = 4096
_BYTES_A_LANE, _BYTES_A_LANE_OF_MANY, _MANY = 400, 160, 1 << 16
"""A lane costs 4 bytes; so much has to be coded for each, less of a code that is long:
there its time counts more."""

_WHOLE_BYTES_A_LANE = 600
"""What is but a part of more, such as the positions of floats, may take more lanes."""

_MOST_STEPS = 1 << 14
_AT_ONCE = 1 << 16
"""Symbols whose frequencies are looked up together, if a row of lanes has fewer."""


def lanes(count: int, coded_bytes: float, whole_bytes: float = 0) -> int:
    """Return how many lanes code symbols.

    Args:
        count: of the symbols.
        coded_bytes: about how many bytes they take.
        whole_bytes: about how many all takes that they are a part of.
    """
    each = _BYTES_A_LANE if coded_bytes < _MANY else _BYTES_A_LANE_OF_MANY
    part, whole = int(coded_bytes) // each, int(whole_bytes) // _WHOLE_BYTES_A_LANE
    count_by_size = max(part, whole, 4)
    return max(min(count_by_size, _MOST_LANES, count), least_lanes(count))


def least_lanes(count: int) -> int:
    """Return the fewest lanes for `count` symbols, lest they take long."""
    return max(min(count // _MOST_STEPS, _MOST_LANES), 1)


def encode(
    symbols: np.ndarray,
    contexts: np.ndarray | None,
    frequencies: Frequencies,
    width: int,
) -> bytes:
    """Return the code of symbols.

    Args:
        symbols: whole numbers of the shape (count,), each below the alphabet's size.
        contexts: which row of the frequencies holds for each symbol, of the same shape;
            None for the only one.
        frequencies: how often each symbol is expected, never 0 for one that comes.
        width: the number of lanes.
    """
    state = np.full(width, _LOWEST, np.uint32)
    words = []
    size = max(_AT_ONCE // width, 1) * width
    for first in reversed(range(0, symbols.size, size)):
        part = slice(first, first + size)
        context = 0 if contexts is None else contexts[part]
        often, before = frequencies.of(context, symbols[part])
        # Less one, so that 2^32 has room in 32 bits.
        most = (often << np.uint32(32 - BITS)) - np.uint32(1)
        rest, rows = np.uint32(TOTAL) - often, []
        for begin in reversed(range(0, often.size, width)):
            row = slice(begin, begin + width)
            now = state[: most[row].size]
            (full,) = (now > most[row]).nonzero()
            full_states = now[full]
            rows.append(full_states)
            now[full] = full_states >> np.uint32(16)
            # Exact: both are whole and below 2^32. Integers divide ten times slower.
            times = (now / often[row]).astype(np.uint32)
            times *= rest[row]
            now += times
            now += before[row]
        words.append(np.concatenate(rows[::-1]).astype("<u2"))
    arrays = [state.astype("<u4"), *reversed(words)]
    return b"".join(part.tobytes() for part in arrays)


def decode(
    code: bytes | memoryview,
    count: int,
    contexts: np.ndarray | None,
    frequencies: Frequencies,
    width: int,
) -> np.ndarray:
    """Return the `count` symbols in `code`, of the shape (count,) and type uint16.

    Args:
        code: what `encode` returned.
        count: the number of symbols.
        contexts: as for `encode`.
        frequencies: as for `encode`.
        width: as for `encode`.

    Raises:
        ModelFileError: if the code does not end where the symbols do.
    """
    if len(code) < 4 * width or len(code) % 2:
        raise damaged("a part of it is too short")
    state = np.frombuffer(code[: 4 * width], "<u4").astype(np.uint32)
    words = np.frombuffer(code[4 * width :], "<u2").astype(np.uint32)
    read = frequencies.reader(contexts, count)
    at = 0
    for begin in range(0, count, width):
        now = state[: count - begin]
        row = slice(begin, begin + now.size)
        often, offset = read.at(row, now & np.uint32(TOTAL - 1))
        now >>= np.uint32(BITS)
        now *= often
        now += offset
        (low,) = (now < _LOWEST).nonzero()
        if at + low.size > words.size:
            raise damaged("a part of it ends too early")
        now[low] = now[low] << np.uint32(16) | words[at : at + low.size]
        at += low.size
    if at != words.size or (state != _LOWEST).any():
        raise damaged("a part of it does not end as it began")
    return read.symbols()


class Code:
    """The frequencies of symbols, and what symbols that come so often take.

    Args:
        counts: how often each symbol comes, of the shape (contexts, symbols).

    Attributes:
        coded_bytes: about how many bytes they take, with their frequencies.
    """

    def __init__(self, counts: np.ndarray) -> None:
        self._frequencies = Frequencies.counted(counts)
        self._table = StreamWriter()
        self._frequencies.write(self._table)
        self._code_bytes = self._frequencies.code_bytes(counts)
        self.coded_bytes = self._code_bytes + len(self._table.content())

    def write(
        self, out: StreamWriter, symbols: np.ndarray, contexts: np.ndarray | None = None
    ) -> None:
        """Write the frequencies, and the symbols that were counted.

        Args:
            out: where to.
            symbols: whole numbers of the shape (count,).
            contexts: that each stands in, of the same shape; None for the only one.
        """
        width = lanes(symbols.size, self._code_bytes, out.whole_bytes)
        code = encode(symbols, contexts, self._frequencies, width)
        out.raw(self._table.content())
        out.number(width)
        out.block(code)


class Symbols:
    """Symbols of one context that are to be written, and what they take.

    Args:
        symbols: whole numbers of the shape (count,).
        alphabet: one more than the largest that there could be.

    Attributes:
        coded_bytes: about how many bytes they take, with their frequencies.
    """

    def __init__(self, symbols: np.ndarray, alphabet: int) -> None:
        self._symbols = symbols
        self._code = Code(np.bincount(symbols, minlength=alphabet)[None])
        self.coded_bytes = self._code.coded_bytes

    def write(self, out: StreamWriter) -> None:
        """Write the frequencies and the symbols."""
        self._code.write(out, self._symbols)


def read(
    source: StreamReader,
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
    return read_code(source, count, contexts, frequencies)


def read_code(
    source: StreamReader,
    count: int,
    contexts: np.ndarray | None,
    frequencies: Frequencies,
) -> np.ndarray:
    """Return `count` symbols whose frequencies are known; see `read`."""
    width = source.number()
    if not least_lanes(count) <= width <= max(count, 1):
        raise damaged("it tells a number that cannot be")
    return decode(source.block(), count, contexts, frequencies, width)
