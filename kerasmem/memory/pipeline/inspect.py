"""Estimates and measures the host memory of an input pipeline."""

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
    """Measure the host memory of `data` when a model is fitted with it.

    Nothing is trained. The first batches pass through a model without weights. A
    generator can be read only once and is therefore not read. To measure a generator,
    pass the function that creates it.

    Args:
        data: Data in a form that `fit` accepts: arrays, a `tf.data.Dataset`, a
            `PyDataset`, a torch `DataLoader` or a generator. Also a function without
            arguments that returns such data, or the path of a data file.
        batch_size: Integer, at least 1. Number of samples per batch, for arrays only.
            Defaults to 32.
        batches: Integer, at least 0. Number of batches to measure. With 0, only the
            estimates are returned. Defaults to 8.

    Returns:
        A `DataMemory`. Its `.table()` lists the stages with advice on how to reduce
        their memory.

    Raises:
        ConfigError: If `batch_size` or `batches` is out of range.
        DataError: If `data` has none of these forms.

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
        # A generator creates its local variables when it starts.
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
    nothing.predict(np.zeros((2, 1)), verbose=0)  # Loads the framework's own memory.
    # The C library would otherwise serve new requests from freed memory, which the
    # measurement would miss.
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
    """A model that accepts any batch and computes nothing."""

    def call(self, inputs: Tensors) -> Any:
        """Return one zero per sample."""
        first = keras.tree.flatten(inputs)[0]
        return keras.ops.zeros((keras.ops.shape(first)[0], 1))
