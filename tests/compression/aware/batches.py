"""Batches that show quantizers all they should know: ties, outliers, one sign."""

import numpy as np


def batches():
    """Return 3 batches each by a name."""
    random = np.random.default_rng(5)
    normal = random.normal(size=(4, 3, 5, 4)).astype("float32")
    return {
        "of two signs": normal[0] * np.float32([[2.0], [1e-3], [50.0], [1.0], [7.0]]),
        "never negative": np.abs(normal[1]) * np.float32(1e-3),
        "never positive": -np.abs(normal[2]) * np.float32(50),
        # Halves of whole steps: what a tie is rounded to.
        "ties": (random.integers(-512, 512, (3, 5, 4)) / 4).astype("float32"),
    }
