"""A stretch of code whose random numbers can be repeated, and nothing left of it."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

_UNSEEDED = 87654321
"""What `tf.compat.v1.get_seed` returns as global seed where there is none."""


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Run a block on random numbers that `seed` decides; None leaves chance alone.

    Afterwards the generators of Python, NumPy and torch go on where they were.
    TensorFlow's global seed is what it was; if it was set, its sequence starts anew.
    `keras.utils.set_random_seed` would leave its seed in Keras for good.
    """
    if seed is None:
        yield
        return
    with generators_kept(), _tensorflow_seeded(seed):
        random.seed(seed)
        np.random.seed(seed)
        if keras.backend.backend() == "torch":
            import torch

            torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Let Python's, NumPy's and torch's generators go on afterwards as if unused."""
    python, array = random.getstate(), np.random.get_state()
    torch_kept = contextlib.nullcontext()
    if keras.backend.backend() == "torch":
        import torch

        torch_kept = torch.random.fork_rng()
    try:
        with torch_kept:
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)


@contextlib.contextmanager
def _tensorflow_seeded(seed: int) -> Iterator[None]:
    # On every backend: Keras shuffles arrays with tf.data.
    import tensorflow as tf

    before, _ = tf.compat.v1.get_seed(1)
    no_seed: Any = None  # what `set_seed` takes it for, though its type does not say
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(no_seed if before == _UNSEEDED else before)
