"""Estimates the memory of a compiled step from the plan of XLA's GPU compiler.

XLA plans the memory of a step before the step runs: one block for all temporary
buffers. The compiler needs only the description of a GPU for this plan. Two
amounts are not in the plan and are added by rules: the workspaces of cuDNN, and the
rounding of requests by the allocator.
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
"""Relative error of the plan if no workspace can change the peak."""
_TRIALS = 0.1
"""Relative error for the first step, whose algorithm trials are not known."""


def estimate(request: Request) -> MemoryEstimate:
    """Estimate the memory of a step that XLA compiles for a GPU.

    Raises:
        ConfigError: If the step is not compiled, the device is not a GPU, or the
            compiler is not installed.
        ModelError: If the step calls a library whose memory is not known.
        ChildDiedError: If the compiler fails.
    """
    _check(request)
    target = description_of(request.card or request.device)
    versions = [*compiler.versions()]
    job = request.job()
    # A custom class may change while its name stays the same.
    parts = job["model"]["objects"].values()
    is_own = any(not each.__module__.startswith(_LIBRARIES) for each in parts)
    sharding = request.sharding
    config = sharding.config
    shares = sharding.devices, sharding.replicas, json.dumps(config, sort_keys=True)
    key = None if is_own else cache.key("estimate", job, *shares, target, *versions)
    cached_text = cache.read(key) if key else None
    if cached_text is not None:
        return MemoryEstimate.from_json(cached_text.decode())
    # Either one program for all devices, or the step of one replica.
    is_split = config is not None
    program = compiler.program_of(request if is_split else request.of_a_replica())
    plan = compiler.compiled(program, target, sharding.devices if is_split else 1)
    result = answer(request, plan, program.batch)
    if key:
        cache.write(key, result.to_json().encode())
    return result


_LIBRARIES = ("keras", "keras_hub", "kerasmem")


def answer(request: Request, content: bytes, batch: Sequence[int]) -> MemoryEstimate:
    """Return the estimate of a step from its plan.

    `content` is a serialized `HloProto` with the scheduled program and its buffers.
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
    """Peak of the temporary block, including workspaces that are not in the plan.

    A workspace adds to the block if it does not fit into the free bytes at its call.

    Attributes:
        least: Bytes without workspaces.
        expected: Bytes with the expected workspaces.
        most: Bytes with the largest possible workspaces.
        position: Index of the instruction at the peak.
        workspace: Bytes of workspace in use at the peak.
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
            "Only XLA makes a plan, for steps of TensorFlow and JAX. Expected: "
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
            "A step with a recurrent layer that runs on cuDNN has no plan: its "
            "reserved memory is not known. Expected: layers with use_cudnn=False. "
            f"Received: {', '.join(recurrent)}. Next: pass method='analytic'."
        )
    if not request.jit_compile:
        raise ConfigError(
            "A plan needs a compiled step. Expected: jit_compile=True (--jit on), "
            f"and layers that support it. Received: jit_compile={request.jit_compile}."
            " Next: pass method='traced'."
        )
    compiler.check_installed()
