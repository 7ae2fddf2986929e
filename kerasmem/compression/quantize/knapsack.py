"""One option for each row, so that sizes fit and harm adds up to little.

This is the multiple-choice knapsack problem: row by row, of all that was chosen so far
what is larger and harms more than another is left out.

Source: Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation",
1969, with a limit on how much is remembered.
"""

import numpy as np

_MOST = 1 << 12
"""So many choices are remembered of the rows so far; more are thinned out by size."""


def best_options(sizes: np.ndarray, harm: np.ndarray, budget: float) -> list[int]:
    """Return for each row the number of an option, so that harm adds up to little.

    It is the least that there is, unless rows are so many that choices among them had
    to be thinned out.

    Args:
        sizes: of shape `(rows, options)`.
        harm: of the same shape.
        budget: most that the sizes may add up to, from the sum of the smallest ones.

    Example:
        >>> sizes = np.array([[1, 2], [1, 2]])
        >>> best_options(sizes, np.array([[5.0, 1.0], [9.0, 1.0]]), budget=3)
        [0, 1]
    """
    # What the rows after each take at least.
    behind = np.cumsum(sizes.min(1)[::-1])[::-1] - sizes.min(1)
    size, total = np.zeros(1, sizes.dtype), np.zeros(1)
    parents = []
    for row, least in enumerate(behind):
        size = (size[:, None] + sizes[row]).reshape(-1)
        total = (total[:, None] + harm[row]).reshape(-1)
        order = np.lexsort((total, size))
        order = order[size[order] + least <= budget]
        before = np.minimum.accumulate(total[order])
        remaining = order[np.append(True, total[order][1:] < before[:-1])]
        remaining = _thinned(remaining, size[remaining])
        parents.append(remaining)
        size, total = size[remaining], total[remaining]
    place, options = len(size) - 1, list[int]()  # the last one harms least
    for remaining in reversed(parents):
        place, option = divmod(int(remaining[place]), sizes.shape[1])
        options.append(option)
    return options[::-1]


def _thinned(remaining: np.ndarray, size: np.ndarray) -> np.ndarray:
    if len(remaining) <= _MOST:
        return remaining
    cell = (size - size[0]) * (_MOST / (size[-1] - size[0]))
    cell = np.floor(cell).astype(np.int64)
    return remaining[np.append(cell[1:] != cell[:-1], True)]
