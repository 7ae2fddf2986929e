"""What whoever trains knows of the moment in which memory ran out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.records import Timeline


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
