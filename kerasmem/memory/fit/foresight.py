"""Whether a batch will fit, before it is tried."""

import functools
from dataclasses import replace
from typing import Any

from kerasmem.backends import device_kind
from kerasmem.errors import ConfigError
from kerasmem.graph.values import held_bytes, nbytes
from kerasmem.memory.batch_size import find_batch_size
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.oom import Room, fewest_micro_batches
from kerasmem.memory.oom.device import figures_of
from kerasmem.records import MemoryEstimate

_SAFE = 0.8  # of the limit: XLA asks for what a step needs in one piece, where free
# memory may lie in several


def limit_of_device() -> int | None:
    """Return the most bytes that this process can have of its device, if known."""
    return figures_of().limit_bytes


def micro_batches(
    model: Any,
    batch_size: int,
    limit_bytes: int,
    *,
    verify: bool,
    input_shape: Any | None = None,
) -> int | None:
    """Return into how many parts a batch should go, None if no way is estimated to fit.

    Args:
        model: a compiled model, built.
        batch_size: samples in the batch.
        limit_bytes: most bytes that may be in use.
        verify: whether a failed step could not be made good: then the upper end of the
            estimate counts, and a step near the limit is tried in a child first.
        input_shape: as in `estimate_memory`.
    """
    estimate = functools.cache(
        functools.partial(_estimate, model, is_cautious=verify, input_shape=input_shape)
    )
    room = Room(
        limit_bytes=limit_bytes,
        other_bytes=_other_bytes(model),
        accumulator_bytes=sum(map(nbytes, model.trainable_variables)),
    )
    fitting = fewest_micro_batches(estimate, room, batch_size)
    parts = None if fitting is None else fitting.micro_batches
    is_easy = parts == 1 and fitting and fitting.peak_bytes < _SAFE * limit_bytes
    if not verify or is_easy:
        return parts
    sums = 0 if parts == 1 else room.accumulator_bytes
    left = round(_SAFE * limit_bytes) - room.other_bytes - sums
    largest = -(-batch_size // (parts or batch_size))
    try:
        found = find_batch_size(model, left, largest=largest, input_shape=input_shape)
    except ConfigError:  # as where this process has the whole card already
        return min(batch_size, 2 * parts) if parts else batch_size
    return -(-batch_size // found)


def _estimate(
    model: Any, size: int, *, is_cautious: bool, input_shape: Any | None
) -> MemoryEstimate:
    found = estimate_memory(model, size, device=device_kind(), input_shape=input_shape)
    return found if is_cautious else replace(found, high_bytes=found.peak_bytes)


def _other_bytes(model: Any) -> int:
    in_use = figures_of().current_bytes
    if in_use is None:
        return 0
    return max(in_use - held_bytes(model), 0)
