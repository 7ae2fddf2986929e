"""Entropy coding: symbols in as many bits as they are rare.

Range asymmetric numeral systems after Duda, "Asymmetric numeral systems: entropy coding
combining speed of Huffman coding with compression rate of arithmetic coding", 2013.
Many coders run side by side, one per lane, so that a step is one operation of NumPy:
symbol i belongs to lane i modulo their number. The words of all lanes share one list.
"""

import numpy as np

from kerasmem.files.coding.frequencies import BITS, Frequencies
from kerasmem.files.coding.stream import damaged

_LOWEST = 1 << 16
"""A state is at least that; below, it takes in a word of 16 bits."""

_MOST_LANES = 4096
_BYTES_A_LANE = 400
"""A lane costs 4 bytes; so much has to be coded for each."""

_MOST_STEPS = 1 << 14


def lanes(count: int, coded_bytes: float) -> int:
    """Return how many lanes code `count` symbols into about so many bytes."""
    wanted = max(int(coded_bytes) // _BYTES_A_LANE, 4)
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
    state = np.full(width, _LOWEST, np.uint64)
    words = []
    for begin in reversed(range(0, symbols.size, width)):
        row = slice(begin, begin + width)
        context = 0 if contexts is None else contexts[row]
        often, before = frequencies.of(context, symbols[row])
        now = state[: often.size]
        full = now >= often << np.uint64(32 - BITS)
        words.append((now[full] & np.uint64(0xFFFF)).astype("<u2"))
        now[full] >>= np.uint64(16)
        times, rest = np.divmod(now, often)
        now[:] = (times << np.uint64(BITS)) + rest + before
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
    state = np.frombuffer(code[: 4 * width], "<u4").astype(np.uint64)
    words = np.frombuffer(code[4 * width :], "<u2").astype(np.uint64)
    symbols = np.empty(count, np.uint16)
    at = 0
    for begin in range(0, count, width):
        now = state[: count - begin]
        context = 0 if contexts is None else contexts[begin : begin + width]
        place = now & np.uint64((1 << BITS) - 1)
        found = frequencies.symbols_at(context, place)
        symbols[begin : begin + width] = found
        often, before = frequencies.of(context, found)
        now[:] = often * (now >> np.uint64(BITS)) + place - before
        low = now < _LOWEST
        taken = np.count_nonzero(low)
        if at + taken > words.size:
            raise damaged("a part of it ends too early")
        now[low] = now[low] << np.uint64(16) | words[at : at + taken]
        at += taken
    if at != words.size or (state != _LOWEST).any():
        raise damaged("a part of it does not end as it began")
    return symbols
