"""Multiple-choice knapsack: one option per row within a budget, with minimal harm.

The solver extends partial choices row by row. It drops a partial choice if another one
is smaller and less harmful.

Source: Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation",
1969, here with a limited number of partial choices.
"""

import numpy as np

_MOST = 1 << 12
"""Maximum number of partial choices to keep. More are thinned out by size."""


def best_options(sizes: np.ndarray, harm: np.ndarray, budget: float) -> list[int]:
    """Return the option of each row that minimizes the total harm within a budget.

    The result is optimal unless partial choices were thinned out. `sizes` and `harm`
    have shape `(rows, options)`. `budget` is at least the sum of the smallest sizes.

    Example:
        >>> sizes = np.array([[1, 2], [1, 2]])
        >>> best_options(sizes, np.array([[5.0, 1.0], [9.0, 1.0]]), budget=3)
        [0, 1]
    """
    # Minimum size of all rows after each row.
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
    place, options = len(size) - 1, list[int]()  # the last choice has the least harm
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
