"""The memory of a compiled step by the plan of XLA's own compiler for a GPU.

XLA plans a step's memory before it runs: one block for all that comes and goes. Its
compiler makes that plan without a card, for the description of one. What it leaves out
is added by rule: the workspaces of cuDNN, and what the allocator gives beyond what it
is asked for.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import keras

from kerasmem.backends.protobuf import Message
from kerasmem.backends.xla.hlo import read_buffers, read_program
from kerasmem.backends.xla.plan import PlannedBlock, temporary_block
from kerasmem.errors import ConfigError
from kerasmem.extras.plans import cache, compiler
from kerasmem.extras.plans.parts import BufferOwners, merged
from kerasmem.extras.plans.workspaces import LibraryCall, library_calls
from kerasmem.graph.layers import sublayers
from kerasmem.memory.estimate.device_specs import description_of
from kerasmem.memory.estimate.pool import block_bytes, exact_bytes, in_use
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.records import EstimatePart, MemoryEstimate

_TIGHT = 0.01
"""What the plan may be off where no workspace can move the peak."""
_TRIALS = 0.1
"""What the first step may be off: which algorithms are tried is not known."""


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate of a step that XLA compiles for a card.

    Raises:
        ConfigError: if the step is not compiled, the device is no card, or the
            compiler is not installed.
        ModelError: if the step calls a library of which it is not known what it takes.
        ChildDiedError: if the compiler ends by an error.
    """
    _check(request)
    target = description_of(request.card or request.device)
    versions = [*compiler.versions()]
    job = request.job()
    # A class of the user's own may change while its name stays.
    parts = job["model"]["objects"].values()
    is_own = any(not each.__module__.startswith(_LIBRARIES) for each in parts)
    sharding = request.sharding
    config = sharding.config
    shares = sharding.devices, sharding.replicas, json.dumps(config, sort_keys=True)
    key = None if is_own else cache.key("estimate", job, *shares, target, *versions)
    cached_text = cache.read(key) if key else None
    if cached_text is not None:
        return MemoryEstimate.from_json(cached_text.decode())
    # One program for all devices, or a step of each replica.
    is_split = config is not None
    program = compiler.program_of(request if is_split else request.of_a_replica())
    plan = compiler.compiled(program, target, sharding.devices if is_split else 1)
    result = answer(request, plan, program.batch)
    if key:
        cache.write(key, result.to_json().encode())
    return result


_LIBRARIES = ("keras", "keras_hub", "kerasmem")


def answer(request: Request, content: bytes, batch: Sequence[int]) -> MemoryEstimate:
    """Return the estimate of a step of which the plan is there.

    Args:
        request: the question.
        content: a serialized `HloProto` with the scheduled program and its buffers.
        batch: bytes of the arrays of the batch.
    """
    proto = Message(content)
    program, buffers = read_program(proto.last(1)), read_buffers(proto.last(3))
    instructions = program.computations[program.entry]
    block, calls = temporary_block(program, buffers), library_calls(instructions)
    results = [
        one.size
        for one in buffers.allocations
        if one.is_result and not one.is_argument and not one.is_local
    ]
    variables = persistent_parts(request)
    others = [*batch, *results]
    peak_of_plan = PlanPeak(block, calls)
    pool = in_use(request.backend, variables, others, peak_of_plan.expected)
    low = exact_bytes(variables, others) + peak_of_plan.least
    high = pool.state + pool.others + block_bytes(peak_of_plan.most)
    peak = pool.total
    inside, largest = BufferOwners(request).contents(block, peak_of_plan.position)
    parts = [
        *variables,
        EstimatePart("input", None, sum(batch)),
        EstimatePart("temporary", None, sum(results)),
        *inside,
        EstimatePart("workspace", None, peak_of_plan.workspace),
    ]
    total = sum(part.nbytes for part in parts)
    parts.append(EstimatePart("rounding", None, max(peak - total, 0)))
    trial = pool.state + pool.others + max((call.trial for call in calls), default=0)
    first = max(peak, trial)
    result = request.answer(
        "plan",
        merged(parts),
        (round(low * (1 - _TIGHT)), peak, round(high * (1 + _TIGHT))),
        (
            round(max(low, trial * (1 - _TRIALS)) * (1 - _TIGHT)),
            first,
            round(max(high, trial * (1 + _TRIALS)) * (1 + _TIGHT)),
        ),
    )
    return replace(result, buffers=largest)


class PlanPeak:
    """The temporary block with the workspaces that are not in the plan.

    A workspace adds to the block where less room is free at that call than it takes.

    Attributes:
        least: bytes without any workspace.
        expected: with those that are expected.
        most: with the largest that there may be.
        position: number of the instruction at the peak.
        workspace: bytes of workspace in use there.
    """

    def __init__(self, block: PlannedBlock, calls: Sequence[LibraryCall]) -> None:
        self.least = self.expected = self.most = block.nbytes
        self.position, self.workspace = block.fullest(), 0
        for call in calls:
            if not call.most:
                continue
            occupied_bytes = block.occupied(call.position)
            self.most = max(self.most, occupied_bytes + call.most)
            if occupied_bytes + call.expected > self.expected:
                self.expected = occupied_bytes + call.expected
                self.position, self.workspace = call.position, call.expected


def _check(request: Request) -> None:
    if request.backend not in ("tensorflow", "jax"):
        raise ConfigError(
            "A plan is XLA's, which compiles steps of TensorFlow and JAX. Expected: "
            f"backend='tensorflow' or 'jax'. Received: backend={request.backend!r}. "
            "Next: pass method='analytic' or 'traced'."
        )
    recurrent = [
        layer.name
        for layer in sublayers(request.model)
        if isinstance(layer, (keras.layers.LSTM, keras.layers.GRU))
        and layer.use_cudnn in (True, "auto")
    ]
    if recurrent:
        raise ConfigError(
            "There is no plan for a step with a recurrent layer that cuDNN runs: it "
            "does not say what it reserves. Expected: layers with use_cudnn=False. "
            f"Received: {', '.join(recurrent)}. Next: pass method='analytic'."
        )
    if not request.jit_compile:
        raise ConfigError(
            "A plan is that of a compiled step. Expected: jit_compile=True (--jit on), "
            f"and layers that support it. Received: jit_compile={request.jit_compile}."
            " Next: pass method='traced'."
        )
    compiler.check_installed()
