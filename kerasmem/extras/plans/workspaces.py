"""Memory of libraries outside the plan: cuDNN workspaces and algorithm trials.

XLA's plan includes them only on a GPU, where XLA times algorithms and keeps the
fastest. The needs of a convolution are known: partial sums of the kernel gradient,
Winograd transforms of image and kernel, or Fourier transforms. The first two are the
expected workspace, the third is the maximum.
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
