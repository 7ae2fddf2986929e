"""What a described model's variables hold, while techniques give them other entries."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kerasmem.backends import current
from kerasmem.files.entries import Entries, Readable
from kerasmem.records import WeightChange

Told = Callable[[], list[WeightChange]]
"""Tells what became of the weights, once all entries have been read."""


class Streams:
    """The entries of variables.

    Args:
        first: gives what a variable has in the file, None if it has its value itself.
    """

    def __init__(self, first: Callable[[Any], Readable | None]) -> None:
        self._first, self._found = first, dict[int, tuple[Any, Entries]]()

    def of(self, variable: Any) -> Entries | None:
        """Return the entries of a variable, None if it has its value itself."""
        if id(variable) not in self._found:
            entries = self._first(variable)
            if entries is None:
                return None
            self.put(variable, entries)
        return self._found[id(variable)][1]

    def by_id(self, key: int) -> Entries | None:
        """Return the entries of a variable by its id, None if none are known."""
        return self._found[key][1] if key in self._found else None

    def assign(self) -> None:
        """Let the variables of a model in memory have the entries they were given."""
        for variable, entries in self._found.values():
            variable.assign(entries.whole())

    def readable(self, variable: Any) -> Readable:
        """Return the entries of a variable that can be read at any place."""
        entries = self.of(variable)
        return entries if isinstance(entries, Readable) else _Held(variable)

    def put(self, variable: Any, entries: Entries) -> None:
        """Give a variable other entries."""
        self._found[id(variable)] = (variable, entries)


class _Held(Readable):
    """The value that a variable has, as long as it keeps that."""

    def __init__(self, variable: Any) -> None:
        array = current().looked_at(variable.value)
        super().__init__(array.shape, array.dtype)
        self._entries = array.reshape(-1)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the entries from one place to another, an array of one axis."""
        return self._entries[start:stop]
