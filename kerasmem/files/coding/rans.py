"""Range asymmetric numeral systems (rANS): entropy coding of symbols."""

import zlib
from typing import Any

import numpy as np

from kerasmem.files.coding.stream import StreamReader, StreamWriter, damaged

BITS = 14
TOTAL = 1 << BITS

MOST_SYMBOLS = 1 << 12


class Frequencies:
    """Symbol frequencies of shape (contexts, symbols). Each row has the sum 2^14."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table.astype(np.uint32)
        self._before = (np.cumsum(self.table, axis=1) - self.table).astype(np.uint32)

    @classmethod
    def counted(cls, counts: np.ndarray) -> "Frequencies":
        """Scales counts to frequencies. Nonzero counts stay nonzero."""
        return cls(np.stack([_scaled(row) for row in counts]))

    def of(self, context: np.ndarray | int, symbols: np.ndarray) -> tuple:
        """Returns the frequencies and cumulative frequencies of symbols."""
        symbols = symbols.astype(np.intp, copy=False)  # flags are no indices
        return self.table[context, symbols], self._before[context, symbols]

    def reader(self, contexts: np.ndarray | None, count: int) -> "_Flags | _Places":
        """Returns a lookup of `count` symbols by cumulative frequency."""
        if self.table.shape[1] == 2:
            return _Flags(self.table[:, 0], contexts, count)
        return _Places(self.table, self._before, contexts, count)

    def code_bytes(self, counts: np.ndarray) -> float:
        """Returns the estimated code size of symbols with the given counts."""
        come = counts > 0
        bits = BITS - np.log2(self.table[come].astype(float))
        return float((counts[come] * bits).sum() / 8)

    def write(self, out: StreamWriter) -> None:
        """Writes the frequencies. The last of each row is implied by the sum."""
        out.block(zlib.compress(self.table[:, :-1].astype("<u2").tobytes(), 9))

    @classmethod
    def read(cls, source: StreamReader, contexts: int, symbols: int) -> "Frequencies":
        """Returns the frequencies written by `write`."""
        size = 2 * contexts * (symbols - 1)
        try:
            unpack = zlib.decompressobj()
            content = unpack.decompress(source.block(), size + 1)
        except zlib.error as error:
            raise damaged("unreadable frequencies") from error
        if len(content) != size:
            raise damaged("wrong number of frequencies")
        table = np.empty((contexts, symbols), np.int64)
        table[:, :-1] = np.frombuffer(content, "<u2").reshape(contexts, symbols - 1)
        table[:, -1] = TOTAL - table[:, :-1].sum(axis=1)
        if table.min() < 0:
            raise damaged("the sum of the frequencies is too large")
        return cls(table)


class _Flags:
    """Lookup for two symbols per context, by comparison."""

    def __init__(self, zeros: np.ndarray, contexts: Any, count: int) -> None:
        self._zeros, self._contexts = zeros, contexts
        self._flags = np.empty(count, bool)

    def at(self, row: slice, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        zeros = self._zeros[0 if self._contexts is None else self._contexts[row]]
        is_set = np.greater_equal(place, zeros, out=self._flags[row])
        often = np.where(is_set, TOTAL - zeros, zeros)
        return often, place - np.where(is_set, zeros, 0)

    def symbols(self) -> np.ndarray:
        return self._flags.astype(np.uint16)


class _Places:
    """Lookup by a table of 2^14 slots per context."""

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
        # Without contexts, a slot number takes 14 bits and its symbol fits as well.
        self._places = np.empty(count, np.uint16 if contexts is None else np.uint32)

    def at(self, row: slice, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the frequency of each symbol, and the offset of its slot."""
        if self._contexts is not None:
            place += self._contexts[row] * np.uint32(TOTAL)
        self._places[row] = place
        slot = self._slots.take(place)
        return slot >> np.uint32(BITS), slot & np.uint32(TOTAL - 1)

    def symbols(self) -> np.ndarray:
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
        # Rounding affects the code size least for the most frequent symbols.
        largest = np.argpartition(whole_numbers, -min(abs(over), come.size))
        some = largest[-min(abs(over), come.size) :]
        some = some[whole_numbers[some] > 1] if over > 0 else some
        whole_numbers[some] -= np.sign(over)
    return whole_numbers


_LOWEST = 1 << 16
"""Minimum of a state. Below, a state reads a word of 16 bits."""

_MOST_LANES = 4096
_BYTES_A_LANE, _BYTES_A_LANE_OF_MANY, _MANY = 400, 160, 1 << 16
"""Minimum code size per lane, which costs 4 bytes. Large codes use more lanes, because
decoding time matters more."""

_WHOLE_BYTES_A_LANE = 600
"""Minimum size per lane of a larger code, such as a code with positions and values."""

_MOST_STEPS = 1 << 14
_AT_ONCE = 1 << 16
"""Number of symbols per lookup of frequencies, if there are fewer lanes."""


def lanes(count: int, coded_bytes: float, whole_bytes: float = 0) -> int:
    """Returns the number of lanes for `count` symbols.

    The sizes are estimates for the symbols and for the enclosing code.
    """
    each = _BYTES_A_LANE if coded_bytes < _MANY else _BYTES_A_LANE_OF_MANY
    part, whole = int(coded_bytes) // each, int(whole_bytes) // _WHOLE_BYTES_A_LANE
    count_by_size = max(part, whole, 4)
    return max(min(count_by_size, _MOST_LANES, count), least_lanes(count))


def least_lanes(count: int) -> int:
    """Returns the minimum number of lanes for `count` symbols, for decoding speed."""
    return max(min(count // _MOST_STEPS, _MOST_LANES), 1)


def encode(
    symbols: np.ndarray,
    contexts: np.ndarray | None,
    frequencies: Frequencies,
    width: int,
) -> bytes:
    """Returns the code of symbols.

    Args:
        symbols: Integers of shape (count,), each below the alphabet size.
        contexts: Row of the frequencies per symbol, or `None` for a single row.
        frequencies: Symbol frequencies, nonzero for each symbol that occurs.
        width: Number of lanes.
    """
    state = np.full(width, _LOWEST, np.uint32)
    words = []
    size = max(_AT_ONCE // width, 1) * width
    for first in reversed(range(0, symbols.size, size)):
        part = slice(first, first + size)
        context = 0 if contexts is None else contexts[part]
        often, before = frequencies.of(context, symbols[part])
        # Minus 1, so that 2^32 fits into 32 bits.
        most = (often << np.uint32(32 - BITS)) - np.uint32(1)
        rest, rows = np.uint32(TOTAL) - often, []
        for begin in reversed(range(0, often.size, width)):
            row = slice(begin, begin + width)
            now = state[: most[row].size]
            (full,) = (now > most[row]).nonzero()
            full_states = now[full]
            rows.append(full_states)
            now[full] = full_states >> np.uint32(16)
            # Exact for integers below 2^32. Integer division is ten times slower.
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
    """Returns the symbols of a code as uint16 of shape (count,). See `encode`.

    Raises `ModelFileError` if the code is damaged.
    """
    if len(code) < 4 * width or len(code) % 2:
        raise damaged("a block is too short")
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
            raise damaged("a block ends too early")
        now[low] = now[low] << np.uint32(16) | words[at : at + low.size]
        at += low.size
    if at != words.size or (state != _LOWEST).any():
        raise damaged("a block has an invalid end")
    return read.symbols()


class Code:
    """Symbol frequencies and the estimated size of a code.

    `coded_bytes` is the estimated size in bytes, including the frequencies.
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
        """Writes the frequencies and the counted symbols."""
        width = lanes(symbols.size, self._code_bytes, out.whole_bytes)
        code = encode(symbols, contexts, self._frequencies, width)
        out.raw(self._table.content())
        out.number(width)
        out.block(code)


class Symbols:
    """Symbols with a single context, each below `alphabet`.

    `coded_bytes` is the estimated size in bytes, including the frequencies.
    """

    def __init__(self, symbols: np.ndarray, alphabet: int) -> None:
        self._symbols = symbols
        self._code = Code(np.bincount(symbols, minlength=alphabet)[None])
        self.coded_bytes = self._code.coded_bytes

    def write(self, out: StreamWriter) -> None:
        """Writes the frequencies and the symbols."""
        self._code.write(out, self._symbols)


def read(
    source: StreamReader,
    count: int,
    alphabet: int,
    contexts: np.ndarray | None = None,
    number: int = 1,
) -> np.ndarray:
    """Returns the symbols of `Symbols` or `Code`, as uint16 of shape (count,).

    `number` is the number of contexts.
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
    """Returns `count` symbols with known frequencies. See `read`."""
    width = source.number()
    if not least_lanes(count) <= width <= max(count, 1):
        raise damaged("invalid number")
    return decode(source.block(), count, contexts, frequencies, width)
