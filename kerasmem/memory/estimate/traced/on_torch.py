"""Traces torch steps with fake tensors and adds the rounding of the CUDA allocator."""

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from kerasmem.backends.profile import MemoryEvent
from kerasmem.backends.trace import tracer
from kerasmem.errors import ModelError
from kerasmem.graph.values import nbytes, other_optimizers
from kerasmem.memory import program as pg
from kerasmem.memory.estimate.inputs import as_tensors, symbolic_batch
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import Op, Program, ProgramTensor
from kerasmem.memory.timeline import Watched, watched
from kerasmem.processes.transfer import pack, unpack
from kerasmem.records import MemoryEstimate
from kerasmem.types import Model
from kerasmem.units import MIB

# 90 % of the cases measured on a GPU are between these multiples of the estimate.
_LOW, _HIGH = 0.94, 1.06
_LIBRARY_WORKSPACE = 64 * MIB
"""Memory of cuBLAS and cuBLASLt on a Hopper GPU from the first matrix product on."""
ROUNDING_BYTES = 512
"""Block sizes of torch's CUDA allocator are multiples of this."""

_DEVICE = "simulated"


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Estimate the memory of a step that torch does not compile.

    Raises:
        ModelError: If the step depends on the values of tensors.
    """
    try:
        peaks, _, step = _live(request, fake=True)
    except RuntimeError as error:
        raise ModelError(
            f"The step of {request.model.name!r} cannot be traced on torch: "
            f"{str(error)[:200]} Expected: a step whose shapes do not depend on its "
            "data. Next: pass method='measured'."
        ) from error
    libraries = _LIBRARY_WORKSPACE if request.device == "gpu" else 0
    first, peak = (nbytes + libraries for nbytes in peaks)
    plan = pg.AllocationPlan(step, in_place=False)
    fullest = pg.peak_of(plan.events, ROUNDING_BYTES, step.present)
    return request.answer(
        "traced",
        pg.parts_of(
            plan,
            fullest,
            workspace=libraries,
            rounding=peak - libraries - fullest.requested_bytes,
        ),
        (round(_LOW * peak), peak, round(_HIGH * peak)),
        (None, first, None),
    )


def later_step(request: Request) -> Sequence[MemoryEvent]:
    """Run real steps and return the events of a later one."""
    _, events, _ = _live(request, fake=False)
    return events


def _live(
    request: Request, *, fake: bool
) -> tuple[list[int], Sequence[MemoryEvent], Program]:
    batch = symbolic_batch(request)
    parcel = pack(request.model, request.optimizer, request.dtype_policy)
    steps: list[tuple[int, Sequence[MemoryEvent], Program]] = []
    with tracer().Life(fake=fake) as life:
        model = unpack(parcel, jit_compile=False)
        if request.training and other_optimizers(model):
            # `fit` builds this optimizer even if the step does not use it.
            model.optimizer.build(model.trainable_variables)
        for _ in range(2):
            # Torch frees reference cycles only during garbage collection. Freezing
            # makes the collections independent of other objects in the process.
            gc.collect()
            gc.freeze()
            begin = len(life.events)
            try:
                variables, present = _step(
                    life, model, batch, training=request.training
                )
            finally:
                gc.unfreeze()
            events = life.events[begin:]
            step = written(events, present, variables.trained_sizes())
            steps.append((max(event.in_use_bytes for event in events), events, step))
    return [peak for peak, *_ in steps], *steps[-1][1:]


def _step(
    life: Any, model: Model, batch: tuple[Any, ...], *, training: bool
) -> tuple[Watched, dict[int, ProgramTensor]]:
    description, attachment = watched(model)
    variables = as_tensors(description)
    layers = {variable.name: variable.layer for variable in description.variables}
    present = {
        one.address: variables[one.variable]
        for one in life.storages(attachment.variables, _DEVICE)
    }
    for variable in model.trainable_variables:
        old_gradient = variable.value.grad  # From the previous step.
        if old_gradient is not None:
            layer = layers.get(variable.path)
            y = ProgramTensor((nbytes(old_gradient),), 1, layer, kind="gradient")
            present[life.address(old_gradient)] = y
    unfollow = life.follow(attachment) if training else lambda: None
    tensors = keras.tree.map_structure(
        lambda x: life.tensor(tuple(x.shape), x.dtype), batch
    )
    (life.train_step if training else life.predict_step)(model, tensors)
    unfollow()
    return description, present


def written(
    events: Sequence[MemoryEvent],
    present: Mapping[int, ProgramTensor],
    trained: set[int],
) -> Program:
    """Return the program of a recorded step.

    `present` contains older tensors by address. `trained` contains the sizes of trained
    weights in bytes.
    """
    ops: list[Op] = []
    before, alive = [*present.values()], dict(present)
    made_backward: set[ProgramTensor] = set()
    phase = "unknown"
    for event in events:
        if event.is_allocation:
            phase = event.phase if event.phase != "unknown" else phase
            kind = "workspace" if event.is_scratch else "value"
            y = ProgramTensor((event.requested_bytes,), 1, event.layer, kind=kind)
            alive[event.address] = y
            ops.append(Op(event.operation, event.layer, phase, (), (y,)))
            if phase == "backward" and y.nbytes in trained:
                made_backward.add(y)
            continue
        x = alive.pop(event.address, None)
        if x is None:
            x = ProgramTensor((event.requested_bytes,), 1, kind="rounding")
            before.append(x)
        elif x in made_backward and phase == "optimizer":
            x.kind = "gradient"
        ops.append(Op("free", None, phase, (x,), ()))
    for x in made_backward & {*alive.values()}:
        x.kind = "gradient"
    return Program(tuple(ops), tuple(alive.values()), tuple(before))
