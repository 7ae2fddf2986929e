"""Classification of out-of-memory errors of the frameworks."""

import os
import traceback
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kerasmem import backends
from kerasmem.backends.exhaustion import (
    PoolState,
    Refusal,
    RefusalLog,
    complaint,
    is_out_of_memory,
    read_refusal,
)
from kerasmem.errors import (
    OutOfMemoryError,
)
from kerasmem.memory.settings import card_status
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.names import Names, Origin
from kerasmem.records import TORN, Cause, PostMortem
from kerasmem.records.post_mortem import cause_sentence, fitting_sentence
from kerasmem.types import Model


@dataclass(frozen=True)
class DeviceFigures:
    """Memory values of a device, None if unknown.

    `limit_is_exact` is False without a set limit. The limit is then the memory that
    other processes do not use.
    """

    name: str | None = None
    limit_bytes: int | None = None
    limit_is_exact: bool = False
    current_bytes: int | None = None
    peak_bytes: int | None = None


def figures_of(name: str | None = None) -> DeviceFigures:
    """Return the memory values of a device, by default of the fullest one."""
    readings = backends.current().device_memory()
    if name is not None:
        readings = tuple(one for one in readings if one.name == name)
    if not readings:
        return DeviceFigures(name, *_limit(name))
    fullest = max(readings, key=lambda reading: reading.peak_bytes)
    return DeviceFigures(
        fullest.name,
        *_limit(fullest.name),
        current_bytes=fullest.current_bytes,
        # A peak without small requests is too low for an estimate.
        peak_bytes=fullest.peak_bytes if fullest.complete else None,
    )


def _limit(name: str | None) -> tuple[int | None, bool]:
    backend = backends.current()
    ordinals = backend.cuda_ordinals()
    if name not in ordinals:
        is_cpu = name is None or name.lower().startswith("cpu")
        return (backend.cpu_limit_bytes() if is_cpu else None), True
    card = card_status(ordinals[name], used_bytes=0)
    if card.limit_bytes is not None or card.card_total_bytes is None:
        return card.limit_bytes, True
    return card.card_total_bytes - (card.others_bytes or 0), False


@dataclass(frozen=True)
class Supply:
    """The memory at the time of the failure, None if unknown.

    `free_bytes` were certainly free, in any number of blocks.
    """

    limit_bytes: int | None
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None


def _supply(
    refusal: Refusal, figures: DeviceFigures, state: PoolState | None
) -> Supply:
    """Return the memory at the time of the failure, from the best available source."""
    limit, request = figures.limit_bytes, refusal.requested_bytes
    if state is not None:
        more = 0 if limit is None else max(limit - state.pool_bytes, 0)
        if request is None or more >= request:
            # The pool would have been extended, so the device has less memory.
            more = 0
        return Supply(
            limit_bytes=state.pool_bytes + more,
            in_use_bytes=state.in_use_bytes,
            free_bytes=state.pool_bytes + more - state.in_use_bytes,
            largest_free_bytes=max(state.largest_free_bytes, more),
        )
    if refusal.in_use_bytes is not None:
        return Supply(refusal.limit_bytes, refusal.in_use_bytes, refusal.free_bytes)
    peak = figures.peak_bytes
    if limit is None or peak is None or not figures.limit_is_exact:
        return Supply(limit)
    # At most the peak was in use. The current use may be lower than at the failure.
    return Supply(limit, free_bytes=limit - peak)


_MESSAGE_LENGTH = 400
_READS_DATA = (
    os.path.join("trainers", "data_adapters"),  # noqa: PTH118 - part of a path
    os.path.join("torch", "utils", "data"),  # noqa: PTH118
)


def noting_refusals() -> AbstractContextManager[RefusalLog]:
    """Return a context that logs the allocator state at failed allocations.

    There is no cost without a failure. Only TensorFlow's allocators on GPUs support it,
    and on CPUs with `TF_CPU_ALLOCATOR_USE_BFC=1`.
    """
    return backends.current().refusals()


def classify(
    error: BaseException,
    model: Model | None = None,
    *,
    phase: str = "unknown",
    refusals: RefusalLog | None = None,
) -> Cause | None:
    """Return the cause of an out-of-memory error, or None for any other error.

    The result contains no tensors. Call this function while the error is handled. Then
    delete the error, whose traceback refers to the tensors of the failed step, and call
    `post_mortem`. `model` is needed to find the layer of an operation. `phase` is one
    of `records.PHASES`.
    """
    if isinstance(error, OutOfMemoryError) or not is_out_of_memory(error):
        return None
    text = str(error)
    refusal = read_refusal(text)
    figures = _figures(refusal.device)
    state = refusals.fullest() if refusals is not None else None
    supply = _supply(refusal, figures, state)
    making_data = phase == "input" or refusal.in_pipeline or _reads_data(error)
    origin = _origin(refusal.operation, model)
    if origin.phase == "unknown":
        origin = Origin(origin.layer, "input" if making_data else phase)
    return Cause(
        kind=_kind(error, refusal, supply, making_data=making_data),
        error=type(error).__name__,
        message=_shortened(complaint(text)),
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
        return "host"  # device allocators of frameworks never raise it
    request, limit = refusal.requested_bytes, supply.limit_bytes
    if request is None:
        return "device"
    if limit is not None and request > limit:
        return "one tensor" if refusal.is_tensor else "device"
    free = supply.free_bytes
    return "fragmentation" if free is not None and request <= free else "device"


def _figures(device: str | None) -> DeviceFigures:
    try:
        return figures_of(device)
    except Exception:  # noqa: BLE001 - queries of a full device may fail
        return DeviceFigures(device)


def _reads_data(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    files = [os.path.normpath(frame.f_code.co_filename) for frame, _ in frames]
    return any(part in name for name in files for part in _READS_DATA)


def _origin(operation: str, model: Model | None) -> Origin:
    if model is None or not operation:
        return Origin(None, "unknown")
    try:
        description, _ = watched(model)
    except Exception:  # noqa: BLE001 - for example, the model is not built
        return Origin(None, "unknown")
    return Names(description, "tensorflow").origin(operation)


def _shortened(text: str) -> str:
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[:_MESSAGE_LENGTH]}..."


def out_of_memory_error(
    post_mortem: PostMortem, kind: str | None = None
) -> OutOfMemoryError:
    """Return an `OutOfMemoryError` with a post-mortem.

    The default kind is the kind of the cause.
    """
    sentences = [cause_sentence(post_mortem.cause), fitting_sentence(post_mortem)]
    sentences.append(
        f"Received: batch_size={post_mortem.batch_size}, in "
        f"{post_mortem.micro_batches} micro-batches."
    )
    if kind == TORN:
        sentences.append(
            "The model in this process cannot be restored to its state before the "
            "step. Continue in a new process from a file or a checkpoint, with smaller "
            "batches or without jit_compile."
        )
    elif post_mortem.remedies:
        first = post_mortem.remedies[0]
        sentences.append(f"Next: {first.name} ({first.how}).")
    sentences.append("Full report: print(error.post_mortem.text()).")
    text = " ".join(filter(None, sentences))
    return OutOfMemoryError(text, post_mortem, kind or post_mortem.cause.kind)
