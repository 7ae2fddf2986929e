"""Remedies for out-of-memory errors and their savings at the peak of a step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kerasmem import backends
from kerasmem.backends import device_kind
from kerasmem.errors import ModelError
from kerasmem.graph.activation_policy import policy_of
from kerasmem.graph.layers import has_graph
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.oom.fitting import Room
from kerasmem.memory.plan.offers import HALF, MIXED, OPTIMIZERS, may_be_half
from kerasmem.memory.plan.planner import lowest_plan
from kerasmem.memory.plan.search import EIGHT_BITS, RECOMPUTE
from kerasmem.records import Cause, MemoryEstimate, Remedy

_POOL_REMEDIES = (
    Remedy(
        name="preallocation of the pool",
        how="km.memory.configure(preallocate=True) at the top of the script",
    ),
    Remedy(
        name="an allocator with less fragmentation",
        how="km.memory.configure(allocator='cuda_malloc_async') at the top of the "
        "script",
    ),
)
_SEGMENT_REMEDIES = (
    Remedy(
        name="expandable segments",
        how="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment, "
        "before Python starts",
    ),
)
_DATA_REMEDIES = (
    Remedy(
        name="a smaller shuffle buffer",
        how="dataset.shuffle(buffer_size) keeps buffer_size elements in memory: use a "
        "smaller buffer, or shuffle file names or indices instead of samples",
    ),
    Remedy(
        name="fewer prefetched batches",
        how="use prefetch(2) and a small num_parallel_calls instead of AUTOTUNE, "
        "without cache() in memory",
    ),
    Remedy(
        name="data from files",
        how="km.memory.stream(...) reads one batch at a time; "
        "km.memory.inspect_data(dataset) lists the memory of each stage",
    ),
)


def remedies_for(cause: Cause) -> tuple[Remedy, ...]:
    """Return the remedies specific to a cause; none if the device is too small."""
    if cause.kind in ("input pipeline", "host"):
        return _DATA_REMEDIES
    if cause.kind == "one tensor":
        whose = f"in {cause.layer}" if cause.layer else "of the request"
        how = (
            f"the tensor {whose} exceeds the limit by itself: make the layer smaller, "
            "or split it"
        )
        return (Remedy(name="a smaller layer", how=how),)
    on_cpu = (cause.device or "").lower().startswith("cpu")
    if cause.kind != "fragmentation" or on_cpu:
        return ()
    return _POOL_REMEDIES if backends.current().pools_memory else _SEGMENT_REMEDIES


_LEAST_SHARE = 0.01
"""Minimum saving of a remedy, as a fraction of the peak."""


@dataclass(frozen=True)
class FailedStep:
    """A step that ran out of memory.

    `estimated` returns the estimate with other arguments, such as `dtype_policy` or an
    activation `policy`.
    """

    model: Any
    size: int
    input_shape: Any | None
    estimate: MemoryEstimate
    estimated: Callable[..., MemoryEstimate]


@dataclass(frozen=True)
class Saving:
    """A change that reduces the memory of a step, and the new estimate."""

    name: str
    how: str
    estimate: MemoryEstimate


def worthwhile(
    savings: Iterable[Saving | None],
    plain: MemoryEstimate,
    room: Room | None,
    correction: float,
) -> list[Remedy]:
    """Return the remedies with enough savings: fitting ones first, then by savings.

    `plain` is the estimate without changes. `room` is None if the limit is unknown.
    """
    least = _LEAST_SHARE * plain.peak_bytes
    before = _asked_bytes(plain)
    around = room or Room(limit_bytes=0)
    remedies = [
        Remedy(
            name=saving.name,
            how=saving.how,
            saves_bytes=saves_bytes,
            peak_bytes=around.peak_bytes(saving.estimate, correction),
            fits=room and room.holds(saving.estimate, correction),
        )
        for saving in savings
        if saving and (saves_bytes := before - _asked_bytes(saving.estimate)) > least
    ]
    return sorted(remedies, key=lambda one: (not one.fits, -(one.saves_bytes or 0)))


def _asked_bytes(estimate: MemoryEstimate) -> int:
    """Return the peak without the rounding of the block of a compiled step.

    Blocks of small models are rounded up to powers of two, which would hide savings.
    """
    beyond = estimate.by_category().get("rounding", 0) if estimate.jit_compile else 0
    return estimate.peak_bytes - beyond


def _mixed_precision(step: FailedStep) -> Saving | None:
    if not may_be_half(step.model, step.estimate.device):
        return None
    return Saving(*MIXED, estimate=step.estimated(dtype_policy=HALF))


def _activations(step: FailedStep, *, way: str, name: str, how: str) -> Saving | None:
    is_free = step.estimate.training and policy_of(step.model) is None
    if not is_free or not (way == RECOMPUTE or has_graph(step.model)):
        return None
    request = checked_request(
        step.model, step.size, device=device_kind(), input_shape=step.input_shape
    )
    try:
        plan = lowest_plan(request, way)
    except ModelError:  # The calls of a subclassed model cannot be recorded.
        return None
    if not plan.changes_activations:
        return None
    return Saving(
        name=name,
        how=f"{how.format(step.size)}: a step takes {plan.extra_time:.0%} longer "
        "(estimated)",
        estimate=step.estimated(policy=plan.policy(step.model)),
    )


def _other_optimizer(
    step: FailedStep, *, name: str, make: Callable[[], Any], how: str
) -> Saving | None:
    if not step.estimate.training:
        return None
    return Saving(name, how, step.estimated(optimizer=make()))


SAVINGS: Mapping[str, Callable[[FailedStep], Saving | None]] = {
    "rematerialization": partial(
        _activations,
        way=RECOMPUTE,
        name="rematerialization",
        how="km.rematerialize(model, batch_size={}) recomputes activations in the "
        "backward pass",
    ),
    "int8 activations": partial(
        _activations,
        way=EIGHT_BITS,
        name="int8 activations",
        how="km.compress_activations(model) saves activations in int8 format",
    ),
    "mixed precision": _mixed_precision,
    **{
        name: partial(_other_optimizer, name=name, make=make, how=how)
        for name, (make, how) in OPTIMIZERS.items()
    },
}
"""Estimated saving of each remedy, None if it does not apply."""
