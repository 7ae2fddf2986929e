"""Estimates the memory of a compiled step from the plan of XLA's GPU compiler.

XLA plans the memory of a step before the step runs: one block for all temporary
buffers. The compiler needs only the description of a GPU for this plan. Two
amounts are not in the plan and are added by rules: the workspaces of cuDNN, and the
rounding of requests by the allocator.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import keras

from kerasmem.backends.protobuf import Message
from kerasmem.backends.xla.hlo import (
    ConvolutionAxes,
    Instruction,
    array_size,
    read_buffers,
    read_program,
)
from kerasmem.backends.xla.plan import Planned, PlannedBlock, temporary_block
from kerasmem.errors import ConfigError, ModelError
from kerasmem.extras.plans import compiler
from kerasmem.graph.layers import sublayers
from kerasmem.memory.estimate import scratch
from kerasmem.memory.estimate.device_specs import description_of
from kerasmem.memory.estimate.pool import block_bytes, exact_bytes, in_use
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.names import Names
from kerasmem.records import EstimateBuffer, EstimatePart, MemoryEstimate
from kerasmem.units import MIB

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
    sharding = request.sharding
    # Either one program for all devices, or the step of one replica.
    is_split = sharding.config is not None
    program = compiler.program_of(request if is_split else request.of_a_replica())
    plan = compiler.compiled(program, target, sharding.devices if is_split else 1)
    return answer(request, plan, program.batch)


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


CONVOLUTION = "__cudnn$conv"
_TO_KERNEL, _TO_INPUT = f"{CONVOLUTION}BackwardFilter", f"{CONVOLUTION}BackwardInput"
_PRODUCT = "__cublas$"
_PLANNED = (
    _PRODUCT, CONVOLUTION, "__cub$", "cub_", "__gpu$", "cu_threefry", "Sharding",
)  # fmt: skip
"""Prefixes of functions whose memory is in the plan or has a rule."""
_REASONS = {
    "rnn": "cuDNN runs this recurrence, and its reserved memory is not known",
    "fmha": "cuDNN runs this attention, and its workspace is not known",
    "cusolver": "cuSOLVER requests its memory at run time",
    "cufft": "cuFFT requests its memory at run time",
}
_RED_ZONE = 8 * MIB
"""Guard bytes before and after each array of a trial, to detect stray writes."""
_PRODUCT_WORKSPACE = 32 * MIB
_SINGLE = 4


class LibraryCall(NamedTuple):
    """A call of a library.

    Args:
        position: Index of the instruction in the program.
        target: Name of the called function.
        operands: Bytes of each operand.
        result: Bytes of the result.
        expected: Expected bytes of workspace outside the plan.
        most: Maximum bytes of that workspace.
    """

    position: int
    target: str
    operands: tuple[int, ...]
    result: int
    expected: int = 0
    most: int = 0

    @property
    def trial(self) -> int:
        """Maximum bytes of the algorithm trials in the first step.

        A trial holds copies of the operands, two results to compare, and red zones.
        """
        is_product = self.target.startswith(_PRODUCT)
        workspace = _PRODUCT_WORKSPACE if is_product else self.most
        arrays = (*self.operands, self.result, self.result, workspace)
        return sum(arrays) + 2 * _RED_ZONE * len(arrays)


def library_calls(instructions: Sequence[Instruction]) -> list[LibraryCall]:
    """Return the calls of cuDNN and cuBLAS in a compiled program.

    Raises:
        ModelError: If the program calls a library whose memory is not known.
    """
    values = {one.number: one for one in instructions}
    calls = []
    for position, one in enumerate(instructions):
        if not one.target:
            continue
        _check_known(one)
        if not one.target.startswith((_PRODUCT, CONVOLUTION)):
            continue
        arrays = [_array(values[n]) for n in one.operands if n in values]
        calls.append(_call(position, one, arrays, _array(one)))
    return calls


class _Array(NamedTuple):
    shape: tuple[int, ...]
    width: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.width


def _array(one: Instruction) -> _Array:
    arrays = [array_size(*texts) for texts in one.shapes.values() if texts[1]]
    return _Array(*arrays[0]) if arrays else _Array((), 0)


def _check_known(one: Instruction) -> None:
    if one.target.startswith(_PLANNED):
        return
    reason = next(
        (text for word, text in _REASONS.items() if word in one.target.lower()),
        "the memory of this library outside the plan is not known",
    )
    raise ModelError(
        f"A step that calls {one.target!r} has no plan: {reason}. Expected: a "
        f"step of XLA's own kernels, cuBLAS and cuDNN's convolutions. Received: "
        f"{one.target!r} in {one.name!r}. Next: pass method='analytic' or 'traced'."
    )


def _call(
    position: int, one: Instruction, operands: Sequence[_Array], result: _Array
) -> LibraryCall:
    sizes = tuple(x.nbytes for x in operands)
    axes, estimate, most = one.axes, 0, 0
    is_whole = one.target.startswith(CONVOLUTION) and len(operands) > 1
    if is_whole and axes and len(axes.image_space) == 2 and axes.groups == 1:
        estimate, most = _workspaces(one.target, axes, operands, result)
    return LibraryCall(position, one.target, sizes, result.nbytes, estimate, most)


def _workspaces(
    target: str, axes: ConvolutionAxes, operands: Sequence[_Array], result: _Array
) -> tuple[int, int]:
    """Return the expected and the maximum workspace of a convolution in bytes.

    The expected workspace is for float32 only: tensor cores use 16-bit operands
    directly. Fourier transforms of images and kernel are the maximum.
    """
    image, kernel, output = _sides(target, operands, result)
    channels = axes.kernel_into, axes.kernel_out
    into, out = (kernel.shape[axis] for axis in channels)
    reach = [n for axis, n in enumerate(kernel.shape) if axis not in channels]
    is_single = image.width == _SINGLE and into > scratch.FEW_CHANNELS
    splits = target == _TO_KERNEL and is_single
    estimate = scratch.SPLITS * kernel.nbytes if splits else 0
    if max(axes.strides) > 1 or max(reach) == 1:
        return estimate, estimate
    space = [image.shape[axis] for axis in axes.image_space]
    samples = math.prod(image.shape) // into // math.prod(space)
    if is_single and reach == [3, 3]:
        winograd = scratch.winograd_bytes(space, samples, (into, out), image.width)
        estimate = max(estimate, winograd)
    padded_lengths = [
        scratch.padded_length(n, k) for n, k in zip(space, reach, strict=True)
    ]
    images = samples * (into + out)
    fourier = scratch.fourier_bytes(padded_lengths, images, into * out, output.width)
    return estimate, max(estimate, min(fourier, scratch.LARGEST_TRIAL))


def _sides(
    target: str, operands: Sequence[_Array], result: _Array
) -> tuple[_Array, _Array, _Array]:
    if target == _TO_KERNEL:
        return operands[0], result, operands[1]
    if target == _TO_INPUT:
        return result, operands[1], operands[0]
    return operands[0], operands[1], result


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


_MOST_BUFFERS = 20
_SCRATCH = (1,)
"""Index of the workspace in the result of a library call."""


class BufferOwners:
    """Maps each buffer of a plan to its layer and category."""

    def __init__(self, request: Request) -> None:
        # Generation calls the layers of the backbone one by one.
        is_whole = request.generate is None
        model, _ = watched(request.model if is_whole else request.model.backbone)
        if request.optimizer is not None:
            model = replace(model, optimizers=(request.optimizer.name,))
        style = "tensorflow" if request.backend == "tensorflow" else "xla"
        self._names = Names(model, style)

    def contents(
        self, block: PlannedBlock, position: int
    ) -> tuple[list[EstimatePart], tuple[EstimateBuffer, ...]]:
        """Return the parts in the block at an instruction, and the largest buffers."""
        parts, buffers = [], []
        for one, own in block.live(position):
            place = self._place(one)
            parts.append(EstimatePart(*place, own))
            buffers.append(_buffer(one, own, *place))
        buffers.sort(key=lambda buffer: -buffer.nbytes)
        return parts, tuple(buffers[:_MOST_BUFFERS])

    def _place(self, one: Planned) -> tuple[str, str | None]:
        category, layer = self._names.place(one.instruction.name, one.size)
        is_scratch = one.instruction.target and one.index == _SCRATCH
        return "workspace" if is_scratch else category, layer


def _buffer(one: Planned, own: int, category: str, layer: str | None) -> EstimateBuffer:
    shape, dtype = one.instruction.shapes.get(one.index, ("", ""))
    return EstimateBuffer(category, layer, own, shape, dtype, one.instruction.name)


def merged(parts: Iterable[EstimatePart]) -> list[EstimatePart]:
    """Sum parts by category and layer, sorted by size in descending order."""
    sums: Counter[tuple[str, str | None]] = Counter()
    for part in parts:
        sums[part.category, part.layer] += part.nbytes
    return [EstimatePart(*place, size) for place, size in sums.most_common()]
