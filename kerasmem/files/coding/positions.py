"""Where the entries of an array are that differ from its most frequent one.

A pruned weight is not empty everywhere alike: the inputs of some rows are never seen,
some columns keep more than others. Rows and columns are sorted into classes by how full
they are, and a position is expected to be full as often as those of its two classes.
Where that saves next to nothing, eight positions make one symbol: it takes a fifth of
the time.
"""

import math

import numpy as np

from kerasmem.files.coding import rans
from kerasmem.files.coding.stream import StreamReader, StreamWriter, damaged

_CLASSES_A_DOUBLING = 2
"""Of what a row or column holds."""

_MOST_CLASSES = 128
_EIGHT = 0
"""In place of the number of classes of rows: eight positions a symbol follow."""

_WORTH_IT = 0.995


class _Eight:
    """Eight flags a symbol, each of them expected to be set as often as all.

    Args:
        full: flags of the shape (entries,).
    """

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
    """Return the frequencies of all symbols of eight flags, exactly.

    Args:
        often: how often a flag is set, of 2^14 times.
    """
    rare = rans.TOTAL - often
    by_number = [often**n * rare ** (8 - n) // rans.TOTAL**7 for n in range(9)]
    table = np.array([max(by_number[s.bit_count()], 1) for s in range(256)])
    largest = table.argmax()
    table[largest] += rans.TOTAL - table.sum()
    return rans.Frequencies(table[None])


class _ByClass:
    """Flags one by one, expected by the classes of their row and column.

    Args:
        grid: flags of the shape (rows, columns).
        classes: of each row, and of each column.
        counts: how many flags are set of those of each two classes.
    """

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
    """Return a way to tell which entries of an array are True: small, then fast.

    Args:
        full: flags of the shape (entries,).
        shape: the shape of the array.
    """
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
    """Return the flags that a way of `plan` wrote, of the shape (entries,)."""
    numbers, classes = [], []
    for length in _grid(shape):
        number = source.number()
        if number == _EIGHT and not numbers:
            return _read_eight(source, math.prod(shape))
        if not 0 < number < _MOST_CLASSES:
            raise damaged("it tells a number that cannot be")
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
        raise damaged("it tells a number that cannot be")
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
