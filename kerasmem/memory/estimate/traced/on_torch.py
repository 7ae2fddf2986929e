"""Torch's step with fake tensors, and what its allocator for CUDA adds."""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.backends.profile import MemoryEvent
from kerasmem.backends.trace import tracer
from kerasmem.errors import ModelError
from kerasmem.graph.values import nbytes
from kerasmem.memory.estimate.outcome import answer
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import as_tensors, symbolic_batch
from kerasmem.memory.program import Op, Program, Tensor, peak_of, plan
from kerasmem.memory.program.parts import kept_for_backward, parts_of
from kerasmem.memory.timeline import Watched, watched
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
        events: allocations and frees of the last step.
        program: the last step.
    """

    peaks: list[int]
    events: Sequence[MemoryEvent]
    program: Program


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
            "data. Next: km.memory.measure_step runs it."
        ) from error
    libraries = beside(request)
    first, peak = (nbytes + libraries for nbytes in lived.peaks)
    step = lived.program
    planned = plan(step, in_place=False)
    fullest = peak_of(planned.events, ROUNDING_BYTES, step.present)
    asked = libraries + sum(nbytes for _, nbytes in fullest.uses)
    extra = {"workspace": libraries, "rounding": peak - asked}
    kept = kept_for_backward(step.ops, planned.owner)
    return answer(
        request,
        "traced",
        parts_of((), fullest, kept, extra),
        (round(_LOW * peak), peak, round(_HIGH * peak)),
        (None, first, None),
    )


def later_step(request: Request) -> Sequence[MemoryEvent]:
    """Return the events of a later step that really runs."""
    return _live(request, fake=False).events


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
    variables = as_tensors(known)
    present = {
        one.address: variables[one.variable]
        for one in life.storages(followed.variables, _DEVICE)
    }
    present |= _gradients(life, model, known)
    unfollow = life.follow(followed) if training else None
    _step(life, model, batch, training=training)
    if unfollow is not None:
        unfollow()
    events = life.events[begin:]
    peak = max(event.in_use_bytes for event in events)
    trained = {v.nbytes for v in known.variables if v.is_trained}
    return _Lived([peak], events, written(events, present, trained))


def written(
    events: Sequence[MemoryEvent], present: Mapping[int, Tensor], trained: set[int]
) -> Program:
    """Return the program of a step that was recorded.

    Args:
        events: its allocations and frees.
        present: what was there before, by address.
        trained: sizes in bytes of weights that have a gradient.
    """
    ops: list[Op] = []
    before, alive = [*present.values()], dict(present)
    made_backward: set[Tensor] = set()
    phase = "unknown"
    for event in events:
        if event.is_allocation:
            phase = event.phase if event.phase != "unknown" else phase
            kind = "workspace" if event.is_scratch else "value"
            y = Tensor((event.requested_bytes,), 1, event.layer, kind=kind)
            alive[event.address] = y
            ops.append(Op(event.operation, event.layer, phase, (), (y,)))
            if phase == "backward" and y.nbytes in trained:
                made_backward.add(y)
            continue
        x = alive.pop(event.address, None)
        if x is None:
            x = Tensor((event.requested_bytes,), 1, kind="rounding")
            before.append(x)
        elif x in made_backward and phase == "optimizer":
            x.kind = "gradient"
        ops.append(Op("free", None, phase, (x,), ()))
    for x in made_backward & {*alive.values()}:
        x.kind = "gradient"
    return Program(tuple(ops), tuple(alive.values()), tuple(before))


def _step(life: Any, model: Any, batch: tuple[Any, ...], *, training: bool) -> None:
    tensors = keras.tree.map_structure(
        lambda spec: life.tensor(tuple(spec.shape), spec.dtype), batch
    )
    if training:
        life.train_step(model, tensors)
    else:
        life.predict_step(model, tensors)


def _gradients(life: Any, model: Any, known: Watched) -> dict[int, Tensor]:
    """Return the gradients that the step before left behind, by address."""
    layers = {variable.name: variable.layer for variable in known.variables}
    return {
        life.address(gradient): Tensor(
            (nbytes(gradient),), 1, layers.get(variable.path), kind="gradient"
        )
        for variable in model.trainable_variables
        if (gradient := variable.value.grad) is not None
    }
