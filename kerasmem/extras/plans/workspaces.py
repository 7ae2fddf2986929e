"""What libraries take beside the plan: cuDNN's workspaces, and trials of algorithms.

XLA's plan knows them only where a card is, for there it times algorithms and keeps the
fastest. What a convolution may take is known: partial sums of its kernel's gradient,
Winograd's transforms of image and kernel, or Fourier transforms. The first two are what
is expected, the third is the most.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kerasmem.backends.xla.convolutions import ConvolutionAxes
from kerasmem.backends.xla.hlo import Instruction, array_size
from kerasmem.errors import ModelError
from kerasmem.memory.estimate import scratch
from kerasmem.units import MIB

CONVOLUTION = "__cudnn$conv"
_TO_KERNEL, _TO_INPUT = f"{CONVOLUTION}BackwardFilter", f"{CONVOLUTION}BackwardInput"
_PRODUCT = "__cublas$"
_PLANNED = (
    _PRODUCT, CONVOLUTION, "__cub$", "cub_", "__gpu$", "cu_threefry", "Sharding",
)  # fmt: skip
"""Beginnings of the names of functions whose memory is in the plan, or has a rule."""
_REASONS = {
    "rnn": "cuDNN runs this recurrence, and does not say what it reserves",
    "fmha": "cuDNN runs this attention, and does not say what it takes",
    "cusolver": "cuSOLVER asks for its memory when it runs",
    "cufft": "cuFFT asks for its memory when it runs",
}
_RED_ZONE = 8 * MIB
"""Before and behind every array of a trial, to see that nothing is written there."""
_PRODUCT_WORKSPACE = 32 * MIB
_SINGLE = 4


class LibraryCall(NamedTuple):
    """A call of a library.

    Args:
        position: number of the instruction in the program.
        target: the function that is called.
        operands: bytes of what it reads.
        result: bytes of what it makes.
        expected: bytes of workspace that are expected beside the plan.
        most: the most that they may be.
    """

    position: int
    target: str
    operands: tuple[int, ...]
    result: int
    expected: int = 0
    most: int = 0

    @property
    def trial(self) -> int:
        """Bytes that the first step takes at most to try algorithms for it.

        Copies of its operands, and its result twice, to compare, all in red zones.
        """
        is_product = self.target.startswith(_PRODUCT)
        workspace = _PRODUCT_WORKSPACE if is_product else self.most
        arrays = (*self.operands, self.result, self.result, workspace)
        return sum(arrays) + 2 * _RED_ZONE * len(arrays)


def library_calls(instructions: Sequence[Instruction]) -> list[LibraryCall]:
    """Return the calls of cuDNN and cuBLAS in a compiled program.

    Args:
        instructions: of its entry computation, in order.

    Raises:
        ModelError: if it calls a library of which it is not known what it takes.
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
        "it is not known what this library takes beside the plan",
    )
    raise ModelError(
        f"There is no plan for a step that calls {one.target!r}: {reason}. Expected: a "
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
    """Return what a convolution is expected to take, and the most that it may.

    It is expected to take something in float32: in 16 bits tensor cores take the
    operands as they are. The most are the transforms of images and kernel by Fourier.
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
