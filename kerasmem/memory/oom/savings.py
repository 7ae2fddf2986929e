"""Remedies for out-of-memory errors and their savings at the peak of a step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends import device_kind
from kerasmem.errors import ModelError
from kerasmem.graph.activation_policy import policy_of
from kerasmem.graph.layers import has_graph
from kerasmem.memory.compress_activations.apply import default_policy
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.oom.fitting import Room
from kerasmem.memory.rematerialize.plan import recorded_step
from kerasmem.memory.rematerialize.rematerialize import policy_for
from kerasmem.memory.rematerialize.search import by_limit
from kerasmem.optional import feature
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


_HALF_POLICY = "mixed_float16"
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
    # CPUs have no fast half-precision arithmetic, so steps would be many times slower.
    if step.model.dtype_policy.name != "float32" or step.estimate.device == "cpu":
        return None
    return Saving(
        name="mixed precision",
        how=f"keras.config.set_dtype_policy({_HALF_POLICY!r}) before model creation",
        estimate=step.estimated(dtype_policy=_HALF_POLICY),
    )


def _rematerialization(step: FailedStep) -> Saving | None:
    if not _may_change_activations(step):
        return None
    request = checked_request(
        step.model, step.size, device=device_kind(), input_shape=step.input_shape
    )
    step_record = recorded_step(request)
    choice = by_limit(step_record, None)
    if not any(piece.recomputed for piece in choice.plan.pieces):
        return None
    policy = policy_for(step.model, step_record.path, choice.pieces)
    return Saving(
        name="rematerialization",
        how=f"km.rematerialize(model, batch_size={step.size}) recomputes activations "
        "in the backward pass: a step takes "
        f"{choice.plan.extra_time:.0%} longer (estimated)",
        estimate=step.estimated(policy=policy),
    )


def _int8_activations(step: FailedStep) -> Saving | None:
    if not _may_change_activations(step):
        return None
    try:
        policy = default_policy(step.model)
    except ModelError:  # no activation can be compressed with a benefit
        return None
    return Saving(
        name="int8 activations",
        how="km.compress_activations(model) saves activations in int8 format",
        estimate=step.estimated(policy=policy),
    )


def _other_optimizer(
    step: FailedStep, *, name: str, make: Callable[[], Any], how: str
) -> Saving | None:
    if not step.estimate.training:
        return None
    return Saving(name, how, step.estimated(optimizer=make()))


def _may_change_activations(step: FailedStep) -> bool:
    has_no_policy = policy_of(step.model) is None
    return step.estimate.training and has_graph(step.model) and has_no_policy


def _adam_8bit() -> Any:
    return feature("Adam8bit")()


_OPTIMIZERS: Mapping[str, tuple[Callable[[], Any], str]] = {
    "8-bit Adam": (
        _adam_8bit,
        "km.optimizers.Adam8bit(...) instead of the current optimizer",
    ),
    "Adafactor": (
        keras.optimizers.Adafactor,
        "keras.optimizers.Adafactor(...) stores only rows and columns of its "
        "statistics; it needs another learning rate",
    ),
    "SGD": (
        keras.optimizers.SGD,
        "keras.optimizers.SGD(...) without momentum stores no statistics; it needs "
        "another learning rate",
    ),
}

SAVINGS: Mapping[str, Callable[[FailedStep], Saving | None]] = {
    "rematerialization": _rematerialization,
    "int8 activations": _int8_activations,
    "mixed precision": _mixed_precision,
    **{
        name: partial(_other_optimizer, name=name, make=make, how=how)
        for name, (make, how) in _OPTIMIZERS.items()
    },
}
"""Estimated saving of each remedy, None if it does not apply."""
