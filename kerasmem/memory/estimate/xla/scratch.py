"""What library calls in a compiled step take beside their operands and results."""

import math

from kerasmem.backends.trace_hlo import Flat, Value
from kerasmem.units import MIB

_FEW_CHANNELS = 4
_SPLITS = 15
_TRIAL_COPIES = 3


def workspace(program: Flat, number: int) -> int:
    """Return the scratch bytes of a value's kernel on a GPU.

    Args:
        program: the program.
        number: index of the value.
    """
    value = program.values[number]
    operands = [program.values[operand] for operand in value.operands]
    if value.opcode == "convolution":
        return _convolution(value, operands[0], operands[1])
    if value.opcode == "select-and-scatter":
        # XLA finds the largest of each window by their indices: one array of them per
        # axis beside the values, and all of them together for the scatter.
        windows = operands[1]
        return (2 * len(windows.shape) + 1) * math.prod(windows.shape) * 4
    return 0


def _convolution(value: Value, left: Value, right: Value) -> int:
    # cuDNN wants channels last and gets channels first, but for 16 bit numbers.
    if value.itemsize == 2 or is_depthwise(left, right):
        return 0
    copies = left.nbytes + right.nbytes
    if left.shape[0] == right.shape[0] == value.shape[0]:
        return copies
    is_kernel = value.shape[0] != left.shape[0]
    if is_kernel:
        return copies + _SPLITS * value.nbytes if _channels(left) else 0
    is_backward = "transpose(" in value.name or "Backprop" in value.name
    if not is_backward and not _channels(left):
        return 0
    return copies + (value.nbytes if is_backward else 0)


def _channels(image: Value) -> bool:
    return image.shape[-1] > _FEW_CHANNELS


def is_depthwise(left: Value, right: Value) -> bool:
    """Return whether every channel is convolved with a kernel of its own."""
    return 1 in right.shape[-2:] and len(right.shape) == len(left.shape)


def trial(program: Flat, number: int) -> int:
    """Return what XLA takes at most to try algorithms for a value on a GPU.

    It compiles with all operands in copies of their own. The largest algorithm for
    convolutions works on Fourier transforms of images and kernels.
    """
    value = program.values[number]
    if value.opcode not in {"convolution", "dot"} or len(value.operands) < 2:
        return 0
    left, right = (program.values[operand] for operand in value.operands[:2])
    tensors = left.nbytes + right.nbytes
    if value.opcode == "dot":
        return tensors + _TRIAL_COPIES * value.nbytes
    return tensors + value.nbytes + _fourier(value, left, right)


def _fourier(value: Value, left: Value, right: Value) -> int:
    """Return the bytes of the transforms in a forward convolution of stride 1."""
    is_forward = len(left.shape) == 4 and left.shape[1:3] == value.shape[1:3]
    if not is_forward or is_depthwise(left, right) or right.shape[0] < 2:
        return 0
    height = _padded(left.shape[1] + right.shape[0] - 1)
    width = _padded(left.shape[2] + right.shape[1] - 1)
    plane = height * (width // 2 + 1) * 2 * value.itemsize
    images = left.shape[0] * (left.shape[3] + value.shape[3])
    kernels = 2 * right.shape[2] * right.shape[3]
    return (images + kernels) * plane


def _padded(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


LARGEST_TRIAL = 4096 * MIB
"""XLA and TensorFlow allow cuDNN no more than this for an algorithm."""
