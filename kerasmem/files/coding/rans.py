"""Symbols with their frequencies."""

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
        self.table = table.astype(np.uint32)
        self._before = (np.cumsum(self.table, axis=1) - self.table).astype(np.uint32)
        self._slots: np.ndarray | None = None

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
            return np.where(symbols, _TOTAL - zeros, zeros), np.where(symbols, zeros, 0)
        if isinstance(context, int):
            return self.table[context].take(symbols), self._before[context].take(
                symbols
            )
        return self.table[context, symbols], self._before[context, symbols]

    def at(self, context: np.ndarray | int, place: np.ndarray) -> tuple:
        """Return the symbols whose frequencies reach over places below 2^14.

        Returns:
            The symbols, the frequency of each, and how far it is into it.
        """
        if self.table.shape[1] == 2:
            zeros = self.table[context, 0]
            found = place >= zeros
            often = np.where(found, _TOTAL - zeros, zeros)
            return found, often, place - np.where(found, zeros, 0)
        if self._slots is None:
            self._slots = np.stack([*map(_slots, self.table, self._before)])
        if isinstance(context, int):
            slot = self._slots[context].take(place)
        else:
            slot = self._slots[context, place]
        return (
            slot.astype(np.uint16),
            (slot >> _OFTEN).astype(np.uint16),
            (slot >> _OFFSET).astype(np.uint16),
        )

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


_OFTEN, _OFFSET = np.uint64(16), np.uint64(32)
"""Where in a slot a frequency begins, and how far into it the slot is."""


def _slots(often: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return what a decoder needs of each of 2^14 places, in one number."""
    symbols = np.repeat(np.arange(often.size), often)
    offsets = np.arange(_TOTAL) - before[symbols]
    slots = symbols.astype(np.uint64) | often[symbols].astype(np.uint64) << _OFTEN
    return slots | offsets.astype(np.uint64) << _OFFSET


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


_LOWEST = 1 << 16
"""A state is at least that; below, it takes in a word of 16 bits."""

_MOST_LANES = 4096
_BYTES_A_LANE, _BYTES_A_LANE_OF_MANY, _MANY = 400, 160, 1 << 16
"""A lane costs 4 bytes; so much has to be coded for each, less of a code that is long:
there its time counts more."""

_WHOLE_BYTES_A_LANE = 600
"""What is but a part of more, such as the positions of floats, may take more lanes."""

_MOST_STEPS = 1 << 14


def lanes(count: int, coded_bytes: float, whole_bytes: float = 0) -> int:
    """Return how many lanes code symbols.

    Args:
        count: of the symbols.
        coded_bytes: about how many bytes they take.
        whole_bytes: about how many all takes that they are a part of.
    """
    each = _BYTES_A_LANE if coded_bytes < _MANY else _BYTES_A_LANE_OF_MANY
    part, whole = int(coded_bytes) // each, int(whole_bytes) // _WHOLE_BYTES_A_LANE
    wanted = max(part, whole, 4)
    return max(min(wanted, _MOST_LANES, count), least_lanes(count))


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
    for begin in reversed(range(0, symbols.size, width)):
        row = slice(begin, begin + width)
        context = 0 if contexts is None else contexts[row]
        often, before = frequencies.of(context, symbols[row])
        now = state[: often.size]
        # Less one, so that 2^32 has room in 32 bits.
        (full,) = (now > (often << np.uint32(32 - BITS)) - np.uint32(1)).nonzero()
        taken = now[full]
        words.append(taken.astype("<u2"))
        now[full] = taken >> np.uint32(16)
        # Exact: both are whole and below 2^32. Integers divide ten times slower.
        times = (now / often).astype(np.uint32)
        now += times * (np.uint32(_TOTAL) - often) + before
    ordered = [state.astype("<u4").tobytes(), *(w.tobytes() for w in reversed(words))]
    return b"".join(ordered)


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
    symbols = np.empty(count, np.uint16)
    at = 0
    for begin in range(0, count, width):
        now = state[: count - begin]
        context = 0 if contexts is None else contexts[begin : begin + width]
        found, often, offset = frequencies.at(context, now & np.uint32(_TOTAL - 1))
        symbols[begin : begin + width] = found
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
    return symbols


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
        width = lanes(self._symbols.size, self._code_bytes, out.whole_bytes)
        code = encode(self._symbols, self._contexts, self._frequencies, width)
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
    if not least_lanes(count) <= width <= max(count, 1):
        raise damaged("it tells a number that cannot be")
    return decode(source.block(), count, contexts, frequencies, width)
