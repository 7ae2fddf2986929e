"""One of several options for each of many, within a budget."""

import numpy as np


def best_options(sizes: np.ndarray, harm: np.ndarray, budget: float) -> list[int]:
    """Return for each row the number of an option, so that harm adds up to little.

    All begin with their smallest option; then, again and again, the change is made that
    takes off most harm for what it adds in size, as long as the budget allows one.

    Args:
        sizes: of shape `(rows, options)`.
        harm: of the same shape.
        budget: most that the sizes may add up to.

    Example:
        >>> sizes = np.array([[1, 2], [1, 2]])
        >>> best_options(sizes, np.array([[5.0, 1.0], [9.0, 1.0]]), budget=3)
        [0, 1]
    """
    rows = np.arange(len(sizes))
    # Of equally small ones the one that harms least.
    now = np.lexsort((harm, sizes), axis=1)[:, 0]
    left = budget - sizes[rows, now].sum()
    while True:
        larger = sizes - sizes[rows, now][:, None]
        less = harm[rows, now][:, None] - harm
        allowed = (less > 0) & (larger <= left)
        if not allowed.any():
            return now.tolist()
        gain = np.where(allowed, less / np.maximum(larger, 1e-9), -np.inf)
        row, option = np.unravel_index(np.argmax(gain), gain.shape)
        left -= larger[row, option]
        now[row] = option
