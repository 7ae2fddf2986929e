"""How many samples a batch of a `fit` has."""

import itertools
from typing import Any

import keras

from kerasmem.files.data.forms import is_array_data

_KERAS_DEFAULT = 32


def samples_per_batch(x: Any, batch_size: int | None) -> int:
    """Return the samples of a full batch, 0 where they cannot be told beforehand.

    Args:
        x: what `fit` was given: arrays, or what makes batches. A dataset that can be
            started again is asked for its first batch; a generator is left alone.
        batch_size: the argument of `fit`.
    """
    if batch_size is not None:
        return batch_size
    if x is None or is_array_data(x):
        return _KERAS_DEFAULT
    if isinstance(getattr(x, "batch_size", None), int):
        return x.batch_size
    if isinstance(x, keras.utils.PyDataset):
        return _samples(x[0])
    if iter(x) is x:
        return 0
    return next((_samples(batch) for batch in itertools.islice(x, 1)), 0)


def _samples(batch: Any) -> int:
    leaves = [leaf for leaf in keras.tree.flatten(batch) if hasattr(leaf, "shape")]
    return int(leaves[0].shape[0]) if leaves and len(leaves[0].shape) else 0
