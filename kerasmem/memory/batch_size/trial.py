"""Tests a batch size in a child process with limited memory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from kerasmem import backends
from kerasmem.backends.exhaustion import complaint, is_out_of_memory
from kerasmem.errors import ChildDiedError, ConfigError
from kerasmem.memory.estimate.inputs import run_once, zeros
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR, later_peak, peak_of
from kerasmem.memory.estimate.request import Request, custom_step_errors, request_of
from kerasmem.memory.estimate.traced.on_torch import later_step
from kerasmem.memory.estimate.traced.on_xla import estimate_in_process
from kerasmem.memory.nvidia import read_card
from kerasmem.memory.settings import configure
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.units import MIB, format_bytes, parse_bytes

ONE_THREAD = {"TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
"""Environment in which TensorFlow starts operations one by one, as on a GPU.

With more threads, the peak of a step varies by up to a tenth from run to run.
"""


USABLE = 0.96
"""Usable fraction of the memory left by the variables. Above it, steps may fail."""

ONLY_WHAT_IT_NEEDS = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""Environment in which a process allocates GPU memory on demand."""


@dataclass(frozen=True)
class BatchSizeTrial:
    """Result of a trial of one batch size.

    Args:
        batch_size: Integer. Number of samples per batch.
        fits: Boolean. Whether several steps ran within the limit.
        peak_bytes: Measured peak of a later step in bytes. `None` if no step ran or the
            backend does not report a peak.
        reason: Reason for a failure, `""` if the batch fits.
    """

    batch_size: int
    fits: bool
    peak_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class CurvePoint:
    """Peak memory at one batch size.

    Args:
        batch_size: Integer. Number of samples per batch.
        predicted_bytes: Estimated peak in bytes, corrected by measurements.
        measured_bytes: Measured peak in bytes, `None` if no step ran.
    """

    batch_size: int
    predicted_bytes: int
    measured_bytes: int | None


class BatchSize(int):
    """A batch size that fits: an integer with the results of the search.

    Attributes:
        limit_bytes: Memory limit in bytes.
        curve: `CurvePoint` per batch size, ascending.
        trials: `BatchSizeTrial` per tested batch size, in order.
    """

    limit_bytes: int
    curve: tuple[CurvePoint, ...]
    trials: tuple[BatchSizeTrial, ...]

    def __new__(
        cls,
        batch_size: int,
        *,
        limit_bytes: int,
        curve: tuple[CurvePoint, ...],
        trials: tuple[BatchSizeTrial, ...],
    ) -> "BatchSize":
        """Create the integer and attach the results of the search."""
        self = super().__new__(cls, batch_size)
        self.limit_bytes, self.curve, self.trials = limit_bytes, curve, trials
        return self


def limit_in_bytes(memory_limit: Any, device: str) -> int:
    """Return `memory_limit` in bytes, or by default the free memory of the device.

    Raises:
        ConfigError: If the size is invalid, or the memory of the GPU is unknown.
    """
    if memory_limit is not None:
        return parse_bytes(memory_limit, "find_batch_size", "memory_limit")
    if device == "cpu":
        available = psutil.virtual_memory().available
        return min(available, backends.current().cpu_limit_bytes() or available)
    card = read_card(next(iter(backends.current().cuda_ordinals().values())))
    if card is None:
        raise ConfigError(
            "NVIDIA's driver does not report the memory of the GPU. Expected: a "
            "limit. Received: memory_limit=None. Next: pass memory_limit='8GiB'."
        )
    return card.total_bytes - card.used_bytes


def environment(limit_bytes: int, backend: str, device: str) -> Mapping[str, str]:
    """Return the environment that limits the memory of a child, where possible."""
    if device == "gpu":
        return ONLY_WHAT_IT_NEEDS
    if backend != "tensorflow":
        return ON_THE_CPU
    limit = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(max(limit_bytes // MIB, 1))}
    return {**ON_THE_CPU, **COUNTING_ALLOCATOR, **ONE_THREAD, **limit}


def set_limit(limit_bytes: int, device: str) -> None:
    """Limit the memory of this process if its environment does not limit it."""
    if device == "gpu" and backends.current().limits_itself:
        configure(limit=limit_bytes)


_STEPS = 5  # Near the limit, thread timing decides whether a step fits.


def attempt(request: Request, limit_bytes: int, usable_bytes: int) -> BatchSizeTrial:
    """Return whether steps of the batch in `request` run within the limit.

    `usable_bytes` is the maximum peak of a batch that fits.

    Raises:
        ChildDiedError: If the step fails for a reason other than memory.
    """
    job = {**request.job(), "limit": limit_bytes, "usable": usable_bytes}
    try:
        answer = run_in_child(
            f"{__name__}:answer",
            job,
            backend=request.backend,
            environment=environment(limit_bytes, request.backend, request.device),
            doing=f"Measuring batch size {request.batch_size}",
        )
    except ChildDiedError as error:
        if not ran_out_of_memory(error):
            raise
        return BatchSizeTrial(request.batch_size, fits=False, reason=str(error))
    return BatchSizeTrial(**answer)


def ran_out_of_memory(error: ChildDiedError) -> bool:
    """Return whether a child process ended because memory ran out."""
    # A failed allocation may end the process with a signal.
    return error.how.startswith("signal") or is_out_of_memory(error)


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the steps. Called in the child process."""
    set_limit(job["limit"], job["device"])
    try:
        request = request_of(job)
        with custom_step_errors(request):
            peak = _peak(request)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        words = complaint(str(error))[:200]
        return asdict(BatchSizeTrial(job["batch_size"], fits=False, reason=words))
    over = peak is not None and peak > job["usable"]
    reason = f"{format_bytes(peak or 0)} is above the usable part of the limit"
    return asdict(
        BatchSizeTrial(job["batch_size"], not over, peak, reason if over else "")
    )


def _peak(request: Request) -> int | None:
    if request.device == "cpu" and request.backend != "tensorflow":
        return _peak_without_allocator(request)
    return later_peak(request, _STEPS - 1)


def _peak_without_allocator(request: Request) -> int:
    """Run a step and return its peak, computed from tensor sizes.

    On the CPU, torch and JAX have no allocator with counters or limits.
    """
    if request.backend == "torch":
        return peak_of(later_step(request))
    peak = estimate_in_process(request).peak_bytes
    run_once(request, zeros(request))
    return peak
