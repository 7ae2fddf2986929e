"""Scratch space of convolutions on a GPU, between what must be and what may be.

cuDNN has several algorithms for one convolution, and a framework tries them out in the
first step and keeps the fastest. What that one takes nobody knows before, but it lies
between two figures: the operands turned round for the tensor cores, and both of them in
the frequency domain.
"""

import math
from dataclasses import dataclass

from kerasmem.memory.estimate.unrolled import threads, unrolled_bytes
from kerasmem.memory.program import Tensor

_TENSOR_CORE_LAYOUT_IS_LAST = 4
"""From this width on (float32) frameworks run convolutions with the channels first, and
the kernels of tensor cores want them last."""
_LARGEST_TRANSFORM = 256
_TILE = 32
_MOST_TRIED = 4 << 30
"""TensorFlow's and XLA's own limit for the scratch space of a convolution."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch space of a convolution, in bytes.

    Args:
        forward: of the convolution itself.
        to_kernel: of the gradient of its kernel.
        to_input: of the gradient of its input.
        trial: the most that is tried out in the first step.
        at_once: whether both gradients are made at the same time.
    """

    forward: int = 0
    to_kernel: int = 0
    to_input: int = 0
    trial: int = 0
    at_once: bool = False


def no_scratch(_x: Tensor, _y: Tensor, _kernel: Tensor) -> Scratch:
    """Return no scratch space: a CPU, or kernels that need none."""
    return Scratch()


def unrolled_images(x: Tensor, y: Tensor, kernel: Tensor) -> Scratch:
    """Return the space that TensorFlow's convolutions take on this machine's CPU.

    Both gradients are ready at once, and two threads run both.
    """
    image = y.shape[1:]
    to_kernel, to_input = unrolled_bytes(image, kernel.shape, x.shape[0], x.width)
    return Scratch(to_kernel=to_kernel, to_input=to_input, at_once=threads() > 1)


def turned_operands(x: Tensor, y: Tensor, kernel: Tensor) -> Scratch:
    """Return the space that TensorFlow's convolutions take in later steps.

    Seen in the allocations of a GPU: the input turned round going forward; both sides,
    and the result of the gradient before it is turned back, going backward.
    """
    trial = transformed(x, y, kernel)
    if x.width < _TENSOR_CORE_LAYOUT_IS_LAST:
        return Scratch(trial=trial)
    forward = x.nbytes + kernel.nbytes
    backward = 2 * x.nbytes + y.nbytes + kernel.nbytes
    return Scratch(forward, backward, backward, max(trial, backward))


def searched(x: Tensor, y: Tensor, kernel: Tensor) -> Scratch:
    """Return the space that XLA's choice takes: the mean of both figures, in powers."""
    least = turned_operands(x, y, kernel)
    most = transformed(x, y, kernel)

    def between(size: int) -> int:
        return max(size, round(math.sqrt(size * most)))

    backward = between(least.to_kernel)
    return Scratch(between(least.forward), backward, backward, least.trial)


def transformed(x: Tensor, y: Tensor, kernel: Tensor) -> int:
    """Return the space of a convolution by Fourier transform, 0 if there is none."""
    space = x.shape[1:-1]
    if len(space) != 2 or y.shape[1:-1] != space:
        return 0
    return min(_MOST_TRIED, max(_whole(x, y, kernel), _tiled(x, y, kernel)))


def _whole(x: Tensor, y: Tensor, kernel: Tensor) -> int:
    """Return the space of the transform of whole images.

    The input once, the output and the kernels twice (transformed, and turned round for
    the products), each in as many complex numbers as half a padded image has.
    """
    sizes = zip(x.shape[1:-1], kernel.shape[:-2], strict=True)
    padded = [1 << (n + k - 2).bit_length() for n, k in sizes]
    if max(padded) > _LARGEST_TRANSFORM or max(kernel.shape[:-2]) == 1:
        return 0
    samples, into, out = x.shape[0], x.shape[-1], y.shape[-1]
    images = samples * into + 2 * samples * out + 2 * into * out
    return images * padded[0] * (padded[1] // 2 + 1) * 2 * x.width


def _tiled(x: Tensor, y: Tensor, kernel: Tensor) -> int:
    """Return the space of the transform in tiles of 32 by 32, each side once."""
    valid = [_TILE - k + 1 for k in kernel.shape[:-2]]
    if min(valid) < 1 or max(kernel.shape[:-2]) == 1:
        return 0
    sizes = zip(x.shape[1:-1], valid, strict=True)
    tiles = math.prod(-(-n // side) for n, side in sizes)
    samples, into, out = x.shape[0], x.shape[-1], y.shape[-1]
    images = samples * (into + out) * tiles + into * out
    return images * _TILE * (_TILE // 2 + 1) * 2 * x.width
