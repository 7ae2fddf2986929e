"""What the sums of an epoch tell, once they are off the device."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.callbacks import gradient_sums as sums
from kerasmem.callbacks.gradient_state import GradientState
from kerasmem.records import GradientRecord, VariableGradient


@dataclass(frozen=True)
class GradientReading:
    """One epoch's figures.

    Args:
        record: what is kept.
        skipped_steps: number of steps that loss scaling skipped.
        first_nonfinite: index in the epoch of the first update made with a gradient
            that was not finite, None if there is none.
        nonfinite_paths: the variables whose gradient was not finite then.
    """

    record: GradientRecord
    skipped_steps: int
    first_nonfinite: int | None
    nonfinite_paths: tuple[str, ...]


def read_epoch(
    epoch: int, state: GradientState, every: int, dense_bytes: Sequence[int]
) -> GradientReading | None:
    """Return what an epoch's figures tell, None if no step was seen.

    Args:
        epoch: index of the epoch, from 0.
        state: what rode in the steps.
        every: number of updates between two that were sampled, 0 if none was.
        dense_bytes: bytes of each variable's gradient, 0 if it is sparse.
    """
    vector = state.read_vector()
    count = len(state.paths)
    first_bad = vector[sums.HEAD : sums.HEAD + count]
    sparse_bytes = vector[sums.HEAD + count :]
    steps, skipped = round(vector[sums.STEPS]), round(vector[sums.SKIPPED])
    if not steps + skipped:
        return None
    nonfinite = round(vector[sums.NONFINITE])
    first_norm, last = vector[sums.FIRST], vector[sums.LAST]
    finite = steps - nonfinite
    gradient_bytes = [
        dense or round(sparse)
        for dense, sparse in zip(dense_bytes, sparse_bytes, strict=True)
    ]
    record = GradientRecord(
        epoch=epoch,
        steps=steps,
        norm=vector[sums.NORM] / finite if finite else math.nan,
        norm_max=vector[sums.LARGEST] if finite else math.nan,
        nonfinite_steps=nonfinite + skipped,
        variables=_variables(state, gradient_bytes),
        norm_last=last if steps and math.isfinite(last) else math.nan,
        norm_first=first_norm if steps and math.isfinite(first_norm) else math.nan,
        sampled_steps=tuple(range(0, steps, every) if every else ()),
        gradient_bytes=sum(gradient_bytes),
        own_bytes=state.own_bytes,
        time=time.time(),
    )
    first = min((number for number in first_bad if number), default=0.0)
    bad = [path for path, n in zip(state.paths, first_bad, strict=True) if first == n]
    return GradientReading(
        record=record,
        skipped_steps=skipped,
        first_nonfinite=round(first) - 1 if first else None,
        nonfinite_paths=tuple(bad if first else ()),
    )


def _variables(
    state: GradientState, gradient_bytes: Sequence[int]
) -> tuple[VariableGradient, ...]:
    rows = state.read_rows()  # none without per-variable statistics
    figures = zip(state.paths, state.sizes, gradient_bytes, rows, strict=False)
    records = [sums.variable_record(*each) for each in figures]
    return tuple(record for record in records if record is not None)
