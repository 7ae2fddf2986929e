"""Reproducible random numbers without permanent changes of the generators."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

_UNSEEDED = 87654321
"""Global seed that `tf.compat.v1.get_seed` returns if none is set."""


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Return a context with seeded random numbers. None changes nothing.

    Afterwards, the generators of Python, NumPy and torch continue unchanged.
    TensorFlow's global seed is restored, which restarts its sequence.
    `keras.utils.set_random_seed` would change Keras's seed permanently.
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
    """Return a context that restores the generators of Python, NumPy and torch."""
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
    # On every backend, because Keras shuffles arrays with tf.data.
    import tensorflow as tf

    before, _ = tf.compat.v1.get_seed(1)
    no_seed: Any = None  # valid for `set_seed`, but missing from its type
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(no_seed if before == _UNSEEDED else before)
