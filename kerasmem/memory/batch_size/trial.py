"""A batch size tried for real, in a process that is kept to the memory there is."""

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
"""Environment in which TensorFlow starts operations one by one, as it does on a GPU.

With more threads the same step needs up to a tenth more or less from one time to the
next, and a limit decides by chance.
"""


USABLE = 0.96
"""Of what variables leave: nearer to the limit chance decides."""

ONLY_WHAT_IT_NEEDS = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""Environment in which a process takes no more of a card than it needs."""


@dataclass(frozen=True)
class BatchSizeTrial:
    """One batch size, tried in a child process.

    Args:
        batch_size: samples in the batch.
        fits: whether several steps ran within the limit.
        peak_bytes: measured peak of a later step, None if it did not run or the
            backend does not tell.
        reason: why it does not fit, `""` if it does.
    """

    batch_size: int
    fits: bool
    peak_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class CurvePoint:
    """The peak at one batch size.

    Args:
        batch_size: samples in the batch.
        predicted_bytes: estimated peak, corrected by what was measured.
        measured_bytes: measured peak, None where no step ran.
    """

    batch_size: int
    predicted_bytes: int
    measured_bytes: int | None


class BatchSize(int):
    """A batch size that ran: an int that knows how it was found.

    Attributes:
        limit_bytes: the memory limit.
        curve: the peak by batch size, ascending.
        trials: what was tried, in order.
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
        """Return the number with its story."""
        self = super().__new__(cls, batch_size)
        self.limit_bytes, self.curve, self.trials = limit_bytes, curve, trials
        return self


def limit_in_bytes(memory_limit: Any, device: str) -> int:
    """Return the limit: the one given, or what the device has free.

    Raises:
        ConfigError: if it is no size, or nobody tells how large the device is.
    """
    if memory_limit is not None:
        return parse_bytes(memory_limit)
    if device == "cpu":
        available = psutil.virtual_memory().available
        return min(available, backends.current().cpu_limit_bytes() or available)
    card = read_card(next(iter(backends.current().cuda_ordinals().values())))
    if card is None:
        raise ConfigError(
            "NVIDIA's driver does not tell how much memory the GPU has. Expected: a "
            "limit. Received: memory_limit=None. Next: pass memory_limit='8GiB'."
        )
    return card.total_bytes - card.used_bytes


def environment(limit_bytes: int, backend: str, device: str) -> Mapping[str, str]:
    """Return the environment in which a child keeps to the limit, where one can.

    Args:
        limit_bytes: the limit.
        backend: name of the Keras backend of the child.
        device: `"cpu"` or `"gpu"`.
    """
    if device == "gpu":
        return ONLY_WHAT_IT_NEEDS
    if backend != "tensorflow":
        return ON_THE_CPU
    limit = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(max(limit_bytes // MIB, 1))}
    return {**ON_THE_CPU, **COUNTING_ALLOCATOR, **ONE_THREAD, **limit}


def set_limit(limit_bytes: int, device: str) -> None:
    """Keep this process to the limit, where its environment does not yet."""
    if device == "gpu" and backends.current().limits_itself:
        configure(limit=limit_bytes)


_STEPS = 5  # near the limit threads decide: one step may run and the next may not


def attempt(request: Request, limit_bytes: int, usable_bytes: int) -> BatchSizeTrial:
    """Return whether steps of `request`'s batch run within the limit.

    Args:
        request: the model and the batch.
        limit_bytes: the memory limit.
        usable_bytes: a batch that needs more is too near to it.

    Raises:
        ChildDiedError: if the step fails for another reason than memory.
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
    # An allocator that fails may end the process by a signal.
    return error.how.startswith("signal") or is_out_of_memory(error)


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the steps; this happens in the child."""
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
    reason = f"{format_bytes(peak or 0)} is too near to the limit, or above it"
    return asdict(
        BatchSizeTrial(job["batch_size"], not over, peak, reason if over else "")
    )


def _peak(request: Request) -> int | None:
    if request.device == "cpu" and request.backend != "tensorflow":
        return _peak_without_allocator(request)
    return later_peak(request, _STEPS - 1)


def _peak_without_allocator(request: Request) -> int:
    """Run a step, and return its peak by the sizes of its tensors.

    Neither torch nor JAX has an allocator on the CPU that counts or keeps to a limit.
    """
    if request.backend == "torch":
        return peak_of(later_step(request))
    peak = estimate_in_process(request).peak_bytes
    run_once(request, zeros(request))
    return peak
