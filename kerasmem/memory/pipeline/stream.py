"""Streams training data from files larger than memory."""

import math
import mmap
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.checks import OneOf, Whole
from kerasmem.errors import DataError
from kerasmem.files.data import fit_arguments, is_array_data, load_data, sample_count
from kerasmem.files.data.source import mapping_of, release_pages
from kerasmem.types import Dataset
from kerasmem.units import MIB

_ROLES = ("x", "y", "sample_weight")
_RELEASE_AFTER_BYTES = 4 * MIB
_MAPPED_AROUND = 16  # Number of pages that the kernel maps around an accessed page.


class Stream(keras.utils.PyDataset):
    """Batches of arrays on disk, read on demand.

    Created by `stream()`. A `Stream` can be passed to `fit`, `evaluate`, `compress` and
    `distill`. With `shuffle=True`, the samples are shuffled every epoch.

    Attributes:
        samples: Integer. Number of samples.
        batch_size: Integer. Number of samples per batch. The last batch may be smaller.
    """

    def __init__(
        self, parts: dict[str, Any], batch_size: int, *, shuffle: bool, seed: int | None
    ) -> None:
        super().__init__()
        self.samples = len(keras.tree.flatten(parts["x"])[0])
        self.batch_size = batch_size
        self._parts = [parts[role] for role in _ROLES if role in parts]
        self._arrays = keras.tree.flatten(self._parts)
        self._order = np.random.default_rng(seed) if shuffle else None
        self._indices = np.arange(self.samples)
        self._shuffle()
        maps = [mapping_of(array) for array in self._arrays]
        self._maps: list[mmap.mmap] = [m for m in maps if m is not None]
        self._looked_at = 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return math.ceil(self.samples / self.batch_size)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return batch `index` as `(x,)`, `(x, y)` or `(x, y, sample_weight)`."""
        start = index * self.batch_size
        # Rows are read in file order, because neighboring rows share pages.
        rows = np.sort(self._indices[start : start + self.batch_size])
        batch = keras.tree.map_structure(lambda array: array[rows], self._parts)
        self._give_back(sum(part.nbytes for part in keras.tree.flatten(batch)))
        return tuple(batch)

    @property
    def order_bytes(self) -> int:
        """Bytes of the sample order."""
        return self._indices.nbytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the arrays that are already in memory."""
        return sum(a.nbytes for a in self._arrays if mapping_of(a) is None)

    @property
    def most_mapped_bytes(self) -> int:
        """Maximum bytes of the files that are resident at once."""
        on_disk = sum(a.nbytes for a in self._arrays) - self.loaded_bytes
        return min(on_disk, _MAPPED_AROUND * _RELEASE_AFTER_BYTES)

    def on_epoch_end(self) -> None:
        """Shuffle the samples."""
        self._shuffle()

    def _shuffle(self) -> None:
        if self._order is not None:
            self._order.shuffle(self._indices)

    def _give_back(self, newly: int) -> None:
        self._looked_at += newly
        if self._looked_at >= _RELEASE_AFTER_BYTES:
            self._looked_at = 0
            for mapping in self._maps:
                release_pages(mapping)


def stream(
    data: Dataset,
    batch_size: int = 32,
    *,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
) -> Stream:
    """Stream a data set from arrays on disk without loading them into memory.

    The files are memory-mapped, and at most about 64 MiB of them stay resident. Arrays
    that are already in memory are used directly.

    Args:
        data: Path of an `.npz` file from `numpy.savez` (arrays named as for other data
            arguments) or of an `.npy` file. Alternatively `x`, `(x, y)` or
            `(x, y, sample_weight)` with arrays such as `numpy.memmap`.
        batch_size: Integer, at least 1. Number of samples per batch. Defaults to 32.
        split: `"train"` or `"test"`. Split to read from a file. Defaults to
            `"train"`.
        shuffle: Boolean. Whether to shuffle the samples every epoch. Defaults to
            `True`.
        seed: Integer seed of the sample order. Defaults to `None` (a different order
            in every run).

    Returns:
        A `keras.utils.PyDataset` for `fit`, `evaluate`, `km.compress` and `km.distill`.
        A batch is `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ConfigError: If `batch_size` is below 1 or `split` is invalid.
        DataError: If the file cannot be memory-mapped, or `data` contains no arrays.

    Example:
        >>> import numpy as np, tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "train.npz")
        ...     np.savez(path, x=np.zeros((100, 4)), y=np.zeros(100))
        ...     len(stream(path, batch_size=32))
        4
    """
    batch_size = Whole(1).check("stream", "batch_size", batch_size)
    if isinstance(data, (str, os.PathLike)):
        data = _split_of(Path(data), split)
    if not is_array_data(data) or not sample_count(data):
        raise DataError(
            "Expected arrays with at least one sample: a path, x, (x, y) or "
            f"(x, y, sample_weight). Received: {type(data).__name__}."
        )
    parts = fit_arguments(data)
    del parts["batch_size"]
    return Stream(parts, batch_size, shuffle=shuffle, seed=seed)


def _split_of(path: Path, split: str) -> tuple[Any, ...]:
    OneOf(("train", "test")).check("stream", "split", split)
    data = getattr(load_data(path, mapped=True), split)
    if data is None:
        raise DataError(f"{path} contains no test split. Expected: the array x_test.")
    return data
