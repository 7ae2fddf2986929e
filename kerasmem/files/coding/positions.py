"""Codes the positions of entries that differ from the most frequent entry.

The density of a pruned weight varies between rows and columns. Rows and columns are
grouped into classes by density. The probability of a position depends on the classes of
its row and column. If this saves almost nothing, eight positions form one symbol, which
takes a fifth of the time.
"""

import math

import numpy as np

from kerasmem.files.coding import rans
from kerasmem.files.coding.stream import StreamReader, StreamWriter, damaged

_CLASSES_A_DOUBLING = 2
"""Number of classes per doubling of the number of entries in a row or column."""

_MOST_CLASSES = 128
_EIGHT = 0
"""Marks the eight-position mode, in place of the number of row classes."""

_WORTH_IT = 0.995


class _Eight:
    """Flags in groups of eight, all with the same probability."""

    def __init__(self, full: np.ndarray) -> None:
        self._symbols = np.packbits(full)
        self._often = round(int(full.sum()) * rans.TOTAL / full.size)
        self._frequencies = of_eight(self._often)
        counts = np.bincount(self._symbols, minlength=256)[None]
        self.coded_bytes = self._frequencies.code_bytes(counts)

    def write(self, out: StreamWriter) -> None:
        out.number(_EIGHT)
        out.number(self._often)
        width = rans.lanes(self._symbols.size, self.coded_bytes, out.whole_bytes)
        out.number(width)
        out.block(rans.encode(self._symbols, None, self._frequencies, width))


def of_eight(often: int) -> rans.Frequencies:
    """Returns the exact frequencies of eight flags, each set `often` in 2^14 cases."""
    rare = rans.TOTAL - often
    by_number = [often**n * rare ** (8 - n) // rans.TOTAL**7 for n in range(9)]
    table = np.array([max(by_number[s.bit_count()], 1) for s in range(256)])
    largest = table.argmax()
    table[largest] += rans.TOTAL - table.sum()
    return rans.Frequencies(table[None])


class _ByClass:
    """Single flags, with probabilities by the classes of row and column."""

    def __init__(
        self, grid: np.ndarray, classes: list[np.ndarray], counts: np.ndarray
    ) -> None:
        self._grid, self._classes = grid, classes
        self._numbers = counts.shape
        sizes = [
            np.bincount(numbers, minlength=number)
            for numbers, number in zip(classes, counts.shape, strict=True)
        ]
        clear = np.outer(*sizes) - counts
        self._code = rans.Code(np.stack([clear.ravel(), counts.ravel()], axis=1))
        self._sides = [
            rans.Symbols(*s) for s in zip(classes, counts.shape, strict=True)
        ]
        self.coded_bytes = self._code.coded_bytes
        if counts.size > 1:
            self.coded_bytes += sum(side.coded_bytes for side in self._sides)

    def write(self, out: StreamWriter) -> None:
        for number, side in zip(self._numbers, self._sides, strict=True):
            out.number(number)
            if number > 1:
                side.write(out)
        several = math.prod(self._numbers) > 1
        contexts = _contexts(self._classes, self._numbers[1]) if several else None
        self._code.write(out, self._grid.ravel(), contexts)


def plan(full: np.ndarray, shape: tuple[int, ...]) -> "_Eight | _ByClass":
    """Returns the smallest coding of flags, preferring the faster one."""
    grid = full.reshape(_grid(shape))
    doublings = (np.log2(grid.sum(axis=axis) + 1.0) for axis in (1, 0))
    classes = [np.ceil(_CLASSES_A_DOUBLING * n).astype(np.intp) for n in doublings]
    counts = _counts(grid, classes)
    ways: list[_ByClass] = []
    for step in (1, _CLASSES_A_DOUBLING, 0):
        coarse_classes = [_merged(each, step) for each in classes]
        numbers = [_merged(np.arange(number), step) for number in counts.shape]
        ways.append(_ByClass(grid, coarse_classes, _counts(counts, numbers)))
    best = min(ways, key=lambda way: way.coded_bytes)
    eight = _Eight(full)
    return eight if _WORTH_IT * eight.coded_bytes < best.coded_bytes else best


def read(shape: tuple[int, ...], source: StreamReader) -> np.ndarray:
    """Returns the flags written by a coding of `plan`, of shape (entries,)."""
    numbers, classes = [], []
    for length in _grid(shape):
        number = source.number()
        if number == _EIGHT and not numbers:
            return _read_eight(source, math.prod(shape))
        if not 0 < number < _MOST_CLASSES:
            raise damaged("invalid number")
        class_of_each = np.zeros(length, np.uint16)
        if number > 1:
            class_of_each = rans.read(source, length, number)
        numbers.append(number)
        classes.append(class_of_each)
    contexts = _contexts(classes, numbers[1])
    flags = rans.read(source, contexts.size, 2, contexts, math.prod(numbers))
    return flags.astype(bool)


def _read_eight(source: StreamReader, size: int) -> np.ndarray:
    often = source.number()
    if often > rans.TOTAL:
        raise damaged("invalid number")
    count = -(-size // 8)
    symbols = rans.read_code(source, count, None, of_eight(often))
    return np.unpackbits(symbols.astype(np.uint8), count=size).astype(bool)


def _grid(shape: tuple[int, ...]) -> tuple[int, int]:
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _merged(classes: np.ndarray, step: int) -> np.ndarray:
    return -(-classes // step) if step else np.zeros_like(classes)


def _counts(grid: np.ndarray, classes: list[np.ndarray]) -> np.ndarray:
    rows, columns = classes
    return _sums(_sums(grid, rows).T, columns).T


def _sums(array: np.ndarray, classes: np.ndarray) -> np.ndarray:
    order = np.argsort(classes, kind="stable")
    present_classes, begins = np.unique(classes[order], return_index=True)
    sums = np.zeros((int(classes.max(initial=0)) + 1, array.shape[1]), np.int64)
    sums[present_classes] = np.add.reduceat(
        array[order], begins, axis=0, dtype=np.int64
    )
    return sums


def _contexts(classes: list[np.ndarray], columns: int) -> np.ndarray:
    of_row, of_column = (numbers.astype(np.uint16) for numbers in classes)
    return (of_row[:, None] * np.uint16(columns) + of_column).ravel()
