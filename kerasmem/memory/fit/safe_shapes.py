"""Which batches are known to fit."""

from collections import Counter

_PASSES = 2  # on a GPU the first step tries kernels, and may need more than later ones


class SafeShapes:
    """Remembers the batches whose steps have run, by the lengths of all their axes.

    A batch none of whose axes is longer needs no more memory than one of these.
    """

    def __init__(self) -> None:
        self._passed: Counter[tuple[int, ...]] = Counter()
        self._safe: list[tuple[int, ...]] = []

    def covers(self, parts: int, shape: tuple[int, ...]) -> bool:
        """Return whether a batch of this shape, in so many parts, is known to fit."""
        key = parts, *shape
        return any(_is_within(key, safe) for safe in self._safe)

    def note(self, parts: int, shape: tuple[int, ...]) -> None:
        """Note that a step has run."""
        key = parts, *shape
        self._passed[key] += 1
        if self._passed[key] >= _PASSES:
            self._safe = [safe for safe in self._safe if not _is_within(safe, key)]
            self._safe.append(key)


def _is_within(key: tuple[int, ...], safe: tuple[int, ...]) -> bool:
    return (
        len(key) == len(safe)
        and key[0] == safe[0]
        and all(length <= most for length, most in zip(key, safe, strict=True))
    )
