"""Where the entries of an array are that differ from its most frequent one.

A pruned weight is not empty everywhere alike: the inputs of some rows are never seen,
some columns keep more than others. Rows and columns are sorted into classes by how full
they are, and a position is expected to be full as often as those of its two classes.
"""

import math

import numpy as np

from kerasmem.files.coding import rans
from kerasmem.files.coding.stream import Reader, Writer, damaged

_STEPS = (0, 1, 2)
_MOST_CLASSES = 128


class Positions:
    """Flags that are to be written.

    Args:
        full: flags of the shape (entries,).
        shape: the shape of the array.
        steps: classes for each doubling of what a row or column holds; 0 for one class.

    Attributes:
        coded_bytes: about how many bytes they take.
    """

    def __init__(self, full: np.ndarray, shape: tuple[int, ...], steps: int) -> None:
        grid = full.reshape(_grid(shape))
        classes = [_class_of(grid.sum(axis=axis), steps) for axis in (1, 0)]
        self._numbers = [int(found.max(initial=0)) + 1 for found in classes]
        self._sides = [
            rans.Symbols(*side) for side in zip(classes, self._numbers, strict=True)
        ]
        self._flags = rans.Symbols(
            full, 2, _contexts(classes, self._numbers[1]), math.prod(self._numbers)
        )
        self.coded_bytes = self._flags.coded_bytes
        if math.prod(self._numbers) > 1:
            self.coded_bytes += sum(side.coded_bytes for side in self._sides)

    def write(self, out: Writer) -> None:
        """Write the classes of rows and columns, then the flags."""
        for number, side in zip(self._numbers, self._sides, strict=True):
            out.number(number)
            if number > 1:
                side.write(out)
        self._flags.write(out)


def plan(full: np.ndarray, shape: tuple[int, ...]) -> Positions:
    """Return the smallest way to tell which entries of an array are True.

    Args:
        full: flags of the shape (entries,).
        shape: the shape of the array.
    """
    plans = (Positions(full, shape, steps) for steps in _STEPS)
    return min(plans, key=lambda plan: plan.coded_bytes)


def read(shape: tuple[int, ...], source: Reader) -> np.ndarray:
    """Return the flags that `Positions` wrote, of the shape (entries,)."""
    numbers, classes = [], []
    for length in _grid(shape):
        number = source.number()
        if not 0 < number < _MOST_CLASSES:
            raise damaged("it tells a number that cannot be")
        found = np.zeros(length, np.uint16)
        if number > 1:
            found = rans.read(source, length, number)
        numbers.append(number)
        classes.append(found)
    contexts = _contexts(classes, numbers[1])
    flags = rans.read(source, contexts.size, 2, contexts, math.prod(numbers))
    return flags.astype(bool)


def _grid(shape: tuple[int, ...]) -> tuple[int, int]:
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _class_of(counts: np.ndarray, steps: int) -> np.ndarray:
    return np.ceil(steps * np.log2(counts + 1.0)).astype(np.intp)


def _contexts(classes: list[np.ndarray], columns: int) -> np.ndarray:
    """Return the context of each position, from the classes of its row and column."""
    of_row, of_column = (found.astype(np.uint16) for found in classes)
    return (of_row[:, None] * np.uint16(columns) + of_column).ravel()
