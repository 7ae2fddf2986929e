"""What whoever trains knows of the moment in which memory ran out."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.files.data.forms import is_array_data
from kerasmem.records import Timeline

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


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The step in which memory ran out.

    Args:
        batch_size: samples of the effective batch, which makes one update; 0 if
            unknown.
        micro_batches: into how many that was split, from 1.
        epoch: index of the epoch, from 0; None if unknown.
        step: number of the step, from 0 over the whole fit; None if unknown.
        training: False if it was no training step but one of `evaluate` or `predict`.
        limit_bytes: most bytes to use of the device; None for what it has.
        accumulates: whether gradients of several micro-batches are summed up in
            variables of their own, which take the bytes of the trained ones.
        input_shape: as in `estimate_memory`, for a model that leaves lengths open.
        is_freed: whether the tensors of the failed step are gone; otherwise what is in
            use now says nothing of what stays in use.
        other_bytes: bytes in use beside the variables between steps; None to take what
            is in use now for it, if the failed step is gone.
        may_try: whether what should fit may be tried in processes of its own, within
            a minute, where a process can be kept to the limit.
        timelines: a window of steps that ends with this one, where there is one.
        process: index of the process.
    """

    batch_size: int
    micro_batches: int = 1
    epoch: int | None = None
    step: int | None = None
    training: bool = True
    limit_bytes: int | None = None
    accumulates: bool = True
    input_shape: Any | None = None
    is_freed: bool = True
    other_bytes: int | None = None
    may_try: bool = False
    timelines: Sequence[Timeline] = ()
    process: int = 0

    @property
    def micro_batch_size(self) -> int:
        """Samples that went through the model at a time, at most."""
        return -(-self.batch_size // self.micro_batches)

    def smaller_sizes(self) -> Sequence[int]:
        """Return the sizes of more micro-batches than these, rising; at least 1."""
        counts = range(self.micro_batches + 1, self.batch_size + 1)
        sizes = {-(-self.batch_size // count) for count in counts}
        return sorted({1} | {size for size in sizes if size < self.micro_batch_size})
