"""Torch's step with fake tensors, and what its allocator for CUDA adds."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.backends.profile import AllocatorTrace, MemoryEvent, Profile
from kerasmem.backends.trace import tracer
from kerasmem.errors import ModelError
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import symbolic_batch
from kerasmem.memory.estimate.traced.parts import Figures, to_estimate
from kerasmem.memory.timeline import Watched, timelines, watched
from kerasmem.processes.transfer import pack, unpack
from kerasmem.records import MemoryEstimate
from kerasmem.units import MIB

# Nine of ten cases measured on a GPU lay between these multiples of the estimate.
_LOW, _HIGH = 0.94, 1.06
_LIBRARY_WORKSPACE = 64 * MIB
"""What cuBLAS and cuBLASLt take on a Hopper GPU with the first product, and keep."""
ROUNDING_BYTES = 512
"""Torch's allocator for CUDA gives multiples of this."""

_DEVICE = "simulated"


@dataclass(frozen=True)
class _Lived:
    """The last of a few steps.

    Args:
        peaks: peak of each step, without the workspace of libraries.
        profile: the last step.
        model: the model that lived.
        held: category and layer of the gradients that were there before.
    """

    peaks: list[int]
    profile: Profile
    model: Watched
    held: dict[int, tuple[str, str | None]]


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate of a step that torch does not compile.

    Raises:
        ModelError: if the step asks what stands in a tensor.
    """
    try:
        lived = _live(request, fake=True)
    except RuntimeError as error:
        raise ModelError(
            f"The step of {request.model.name!r} cannot be traced on torch: "
            f"{str(error)[:200]} Expected: a step whose shapes do not depend on its "
            "data. Next: method='step' runs it."
        ) from error
    timeline = timelines(lived.profile, lived.model, "given", range(1))[0]
    extra = beside(request)
    figures = Figures(
        low_bytes=round(_LOW * (lived.peaks[-1] + extra)),
        high_bytes=round(_HIGH * (lived.peaks[-1] + extra)),
        first_step_bytes=lived.peaks[0] + extra,
        beside_bytes=extra,
        held=lived.held,
    )
    events = lived.profile.traces[0].events
    return to_estimate(request, timeline, events, figures, "traced")


def later_step(request: Request) -> Sequence[MemoryEvent]:
    """Return the events of a later step that really runs."""
    return _live(request, fake=False).profile.traces[0].events


def beside(request: Request) -> int:
    """Return the bytes that libraries keep on the device beside torch's tensors."""
    return _LIBRARY_WORKSPACE if request.device == "gpu" else 0


def _live(request: Request, *, fake: bool) -> _Lived:
    batch = symbolic_batch(request)
    parcel = pack(request.model, request.optimizer, request.dtype_policy)
    with tracer().Life(fake=fake) as life:
        model = unpack(parcel, jit_compile=False)
        first = _lived_step(life, model, batch, training=request.training)
        last = _lived_step(life, model, batch, training=request.training)
    return replace(last, peaks=first.peaks + last.peaks)


def _lived_step(
    life: Any, model: Any, batch: tuple[Any, ...], *, training: bool
) -> _Lived:
    gc.collect()  # torch frees what is in a cycle only then
    begin = len(life.events)
    known, followed = watched(model)
    held = _gradients(life, model, known)
    opening = life.storages(followed.variables, _DEVICE)
    unfollow = life.follow(followed) if training else None
    _step(life, model, batch, training=training)
    if unfollow is not None:
        unfollow()
    events = life.events[begin:]
    trace = AllocatorTrace("CUDA", _DEVICE, "simulation", events, ROUNDING_BYTES)
    closing = life.storages(followed.variables, _DEVICE)
    peak = max(event.in_use_bytes for event in events)
    return _Lived([peak], Profile([trace], opening, closing), known, held)


def _step(life: Any, model: Any, batch: tuple[Any, ...], *, training: bool) -> None:
    tensors = keras.tree.map_structure(
        lambda spec: life.tensor(tuple(spec.shape), spec.dtype), batch
    )
    if training:
        life.train_step(model, tensors)
    else:
        life.predict_step(model, tensors)


def _gradients(life: Any, model: Any, known: Any) -> dict[int, tuple[str, str | None]]:
    """Return category and layer of the gradients that the step before left behind."""
    layers = {variable.name: variable.layer for variable in known.variables}
    return {
        life.address(variable.value.grad): ("gradient", layers.get(variable.path))
        for variable in model.trainable_variables
        if variable.value.grad is not None
    }
