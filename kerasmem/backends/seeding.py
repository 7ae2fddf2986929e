"""A stretch of code whose random numbers can be repeated."""

import contextlib
import random
from collections.abc import Iterator

import keras
import numpy as np


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Run a block on random numbers that `seed` decides; None leaves chance alone.

    Afterwards the generators of Python and NumPy go on where they were. Those of
    TensorFlow and torch cannot be read by way of Keras: they go on from the block.
    """
    if seed is None:
        yield
        return
    python, array = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
