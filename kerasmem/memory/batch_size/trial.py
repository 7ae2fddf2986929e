"""One batch size tried for real, in a process that may die of it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kerasmem import backends
from kerasmem.backends.exhaustion import complaint, is_out_of_memory
from kerasmem.memory.batch_size.limit import Limit, set_limit
from kerasmem.memory.batch_size.result import Trial
from kerasmem.memory.estimate.child import job_of, request_of
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.on_torch import later_step
from kerasmem.memory.estimate.xla.here import estimate_here
from kerasmem.memory.measure.batch import run_once, zeros
from kerasmem.memory.measure.small import peak_of
from kerasmem.processes import ChildDiedError, run_in_child
from kerasmem.units import format_bytes

_STEPS = 5  # near the limit threads decide: one step may run and the next may not


def attempt(
    request: Request,
    limit: Limit,
    environment: Mapping[str, str],
    seconds: float | None = None,
) -> Trial:
    """Return whether steps of `request`'s batch run within the limit.

    Args:
        request: the model and the batch.
        limit: the memory limit.
        environment: with which the child keeps to the limit.
        seconds: how long it may take; None for as long as it takes.

    Raises:
        TimeoutError: if it took longer.
        ChildDiedError: if the step fails for another reason than memory.
    """
    job = {**job_of(request), "limit": limit.nbytes, "usable": limit.usable_bytes}
    try:
        answer = run_in_child(
            f"{__name__}:answer",
            job,
            backend=request.backend,
            environment=environment,
            seconds=seconds,
        )
    except ChildDiedError as error:
        # An allocator that fails may end the process; what else ends it is no answer.
        if not (_is_crash(error) or is_out_of_memory(error)):
            raise
        return Trial(request.batch_size, fits=False, reason=str(error))
    return Trial(**answer)


def _is_crash(error: ChildDiedError) -> bool:
    return "ended by signal" in str(error)


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the steps; this happens in the child."""
    set_limit(job["limit"], job["device"])
    try:
        request = request_of(job)
        peak = _peak(request)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        words = complaint(str(error))[:200]
        return asdict(Trial(job["batch_size"], fits=False, reason=words))
    over = peak is not None and peak > job["usable"]
    reason = f"{format_bytes(peak or 0)} is too near to the limit, or above it"
    return asdict(Trial(job["batch_size"], not over, peak, reason if over else ""))


def _peak(request: Request) -> int | None:
    """Return the measured peak of the later steps, None if nobody tells."""
    if request.device == "cpu" and request.backend != "tensorflow":
        return _peak_without_allocator(request)
    batch = zeros(request)
    run_once(request, batch)
    backends.current().reset_device_peak()
    for _ in range(_STEPS - 1):
        run_once(request, batch)
    readings = backends.current().device_memory()
    return max((reading.peak_bytes for reading in readings), default=None)


def _peak_without_allocator(request: Request) -> int:
    """Run a step, and return its peak by the sizes of its tensors.

    Neither torch nor JAX has an allocator on the CPU that counts or keeps to a limit.
    """
    if request.backend == "torch":
        return peak_of(later_step(request))
    planned = estimate_here(request).peak_bytes
    run_once(request, zeros(request))
    return planned
