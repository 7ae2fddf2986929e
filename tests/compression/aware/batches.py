"""Batches that show quantizers all they should know: ties, outliers, one sign."""

import itertools

import numpy as np

SHAPES = {"0": (5, 4), "1": (3, 2, 2, 6)}


def batches():
    """Return by `"kind bits symmetric narrow per_channel number"` 3 or 4 batches."""
    random = np.random.default_rng(5)
    found = {}
    for kind, bits, symmetric, narrow in itertools.product(
        ("LastValue", "MovingAverage", "AllValues"), (4, 8), (0, 1), (0, 1)
    ):
        for per_channel in (0, 1) if kind != "AllValues" else (0,):
            for number in range(4):
                name = f"{kind} {bits} {symmetric} {narrow} {per_channel} {number}"
                found[name] = _batch(random, number, SHAPES[str(per_channel)])
    return found


def _batch(random, number, shape):
    x = (
        random.normal(size=(3, *shape)).astype("float32")
        * [[[2.0]], 1e-3, 50.0][number % 3]
    )
    x = x.astype("float32")
    if number == 1:
        x = np.abs(x)
    if number == 2:
        x = -np.abs(x)
    if number == 3:  # halves of whole steps: what a tie is rounded to
        x = (random.integers(-512, 512, (3, *shape)) / 4).astype("float32")
    return x
