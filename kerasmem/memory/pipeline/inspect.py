"""What data keeps in the memory of the host: estimated, then measured."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.heap import trim_heap
from kerasmem.checks import Whole
from kerasmem.files.data import fit_arguments, is_array_data, load_data, sample_count
from kerasmem.files.data.forms import first_samples
from kerasmem.memory.pipeline.stages import leaf_bytes, stages
from kerasmem.processes.host import host_peak, resident_bytes
from kerasmem.records import DataMemory
from kerasmem.types import Dataset, Tensors


def inspect_data(
    data: Dataset, batch_size: int = 32, *, batches: int = 8
) -> DataMemory:
    """Measure the host memory that `data` takes when a model is fitted with it.

    Nothing is trained: the first batches go through a model that does nothing. A
    generator, which can be read only once, is not read at all; the function that makes
    it can be called again, so its batches are measured.

    Args:
        data: what `fit` takes: arrays, a `tf.data.Dataset`, a `PyDataset`, a torch
            `DataLoader`, a generator; or a function without arguments that returns
            one; or a path as in every data argument, whose samples are loaded.
        batch_size: samples per batch, from 1; of arrays only.
        batches: number of batches to measure over; 0 measures nothing.

    Returns:
        The figures; `.table()` tells them, and what to bound and how.

    Raises:
        ConfigError: if `batch_size` or `batches` is out of its range.
        DataError: if `data` is none of the forms.

    Example:
        >>> import numpy as np
        >>> figures = inspect_data((np.zeros((64, 4)), np.zeros(64)), batches=0)
        >>> figures.stages[0].nbytes, figures.batch_bytes
        (2048, 1280)
    """
    batch_size = Whole(1).check("inspect_data", "batch_size", batch_size)
    batches = Whole(0).check("inspect_data", "batches", batches)
    make = data if callable(data) and inspect.isroutine(data) else None
    if make:
        data = make()
    elif isinstance(data, (str, Path)):
        data = load_data(data).train
    if isinstance(data, Iterator) and not is_array_data(data):
        # A generator has its variables once it has begun.
        first = next(data, None) if make else None
        parts = tuple(stages(data))
        size = None if first is None else leaf_bytes(first)
        data = make() if make else None
    else:
        parts, size = tuple(stages(data)), _batch_bytes(data, batch_size)
    measured_bytes = None
    if batches and data is not None:
        measured_bytes = _measure(data, batch_size, batches)
    return DataMemory(
        stages=parts,
        batch_size=batch_size,
        batch_bytes=size,
        measured_bytes=measured_bytes,
        measured_batches=0 if measured_bytes is None else batches,
    )


def _batch_bytes(data: Dataset, batch_size: int) -> int:
    first = first_samples(data)
    if not is_array_data(data):
        return leaf_bytes(first)
    count = sample_count(data) or 1
    return leaf_bytes(first) * min(batch_size, count) // count


def _measure(data: Dataset, batch_size: int, batches: int) -> int:
    arguments = fit_arguments(data, batch_size)
    if is_array_data(data):
        del arguments["batch_size"]
        arguments = {"x": arguments, "batch_size": batch_size}
    nothing = _Nothing(name="nothing")
    nothing.predict(np.zeros((2, 1)), verbose=0)  # what the framework needs itself
    # What the C library has kept of what was freed would serve new requests, and
    # these would not show.
    trim_heap()
    peak = host_peak(lambda: True)
    try:
        peak.reset()
        before = resident_bytes()
        nothing.predict(**arguments, steps=batches, verbose=0)
        return max(0, peak.read().peak_bytes - before)
    finally:
        peak.close()


class _Nothing(keras.Model):
    """Takes any batch and does nothing with it."""

    def call(self, inputs: Tensors) -> Any:
        """Return a zero per sample."""
        first = keras.tree.flatten(inputs)[0]
        return keras.ops.zeros((keras.ops.shape(first)[0], 1))
