"""Why memory ran out, from the error that a framework raised."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from kerasmem import backends
from kerasmem.backends.exhaustion import (
    Refusal,
    complaint,
    is_out_of_memory,
    read_refusal,
)
from kerasmem.backends.refusals import RefusalLog
from kerasmem.errors import OutOfMemoryError
from kerasmem.memory.oom.device import DeviceFigures, figures_of
from kerasmem.memory.oom.supply import Supply, supply_of
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.names import Names, Origin
from kerasmem.records import Cause

_MESSAGE_LENGTH = 400
_READS_DATA = (
    os.path.join("trainers", "data_adapters"),  # noqa: PTH118 - a piece of a path
    os.path.join("torch", "utils", "data"),  # noqa: PTH118
)


def noting_refusals() -> AbstractContextManager[RefusalLog]:
    """Return a scope in which the allocators note the state in which they refuse.

    It costs nothing until they do. TensorFlow's tell, on a GPU and, with
    `TF_CPU_ALLOCATOR_USE_BFC=1`, on a CPU; elsewhere nothing is noted.
    """
    return backends.current().refusals()


def classify(
    error: BaseException,
    model: Any | None = None,
    *,
    phase: str = "unknown",
    refusals: RefusalLog | None = None,
) -> Cause | None:
    """Return why memory ran out, None if `error` says nothing of memory.

    What is returned holds no tensors: call this while the error is handled, then let go
    of the error, whose traceback holds those of the failed step, free what can be
    freed, and only then ask for a `post_mortem`.

    Args:
        error: what was raised.
        model: the model in training, to tell the layer from the operation's name.
        phase: what was being done, one of `records.PHASES`; `"input"` if a batch was
            being made.
        refusals: what the allocators noted, see `noting_refusals`.
    """
    if isinstance(error, OutOfMemoryError) or not is_out_of_memory(error):
        return None
    text = str(error)
    refusal = read_refusal(text)
    figures = _figures(refusal.device)
    state = refusals.fullest() if refusals is not None else None
    supply = supply_of(refusal, figures, state)
    making_data = phase == "input" or refusal.in_pipeline or _reads_data(error)
    origin = _origin(refusal.operation, model)
    if origin.phase == "unknown":
        origin = Origin(origin.layer, "input" if making_data else phase)
    return Cause(
        kind=_kind(error, refusal, supply, making_data=making_data),
        error=type(error).__name__,
        message=_cut(complaint(text)),
        requested_bytes=refusal.requested_bytes,
        shape=refusal.shape,
        dtype=refusal.dtype,
        operation=refusal.operation,
        layer=origin.layer,
        phase=origin.phase,
        device=refusal.device or figures.name,
        limit_bytes=supply.limit_bytes,
        in_use_bytes=supply.in_use_bytes,
        largest_free_bytes=supply.largest_free_bytes,
        peak_bytes=figures.peak_bytes,
        in_use_after_bytes=figures.current_bytes,
    )


def _kind(
    error: BaseException, refusal: Refusal, supply: Supply, *, making_data: bool
) -> str:
    if making_data:
        return "input pipeline"
    if isinstance(error, MemoryError):
        return "host"  # no framework's allocator of a device raises it
    asked, limit = refusal.requested_bytes, supply.limit_bytes
    if asked is None:
        return "device"
    if limit is not None and asked > limit:
        return "one tensor" if refusal.is_tensor else "device"
    free = supply.free_bytes
    return "fragmentation" if free is not None and asked <= free else "device"


def _figures(device: str | None) -> DeviceFigures:
    try:
        return figures_of(device)
    except Exception:  # noqa: BLE001 - a full device may not even answer
        return DeviceFigures(device)


def _reads_data(error: BaseException) -> bool:
    """Return whether the error came out of the code that makes batches."""
    return any(part in name for name in _files(error) for part in _READS_DATA)


def _files(error: BaseException) -> Iterator[str]:
    place: TracebackType | None = error.__traceback__
    while place is not None:
        yield os.path.normpath(place.tb_frame.f_code.co_filename)
        place = place.tb_next


def _origin(operation: str, model: Any | None) -> Origin:
    if model is None or not operation:
        return Origin(None, "unknown")
    try:
        found, _ = watched(model)
    except Exception:  # noqa: BLE001 - such as a model that is not built
        return Origin(None, "unknown")
    return Names(found, "tensorflow").origin(operation)


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[:_MESSAGE_LENGTH]}..."
