"""Which values of a compiled program get memory of their own on a GPU, and what else.

XLA computes a value again wherever it is used if that costs less than storing it, and
never stores what only a fused kernel needs in its middle. This imitates the choice by
the bytes that are read and written; XLA itself also weighs the arithmetic.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kerasmem.backends.xla.flat import Flat, Value
from kerasmem.memory.estimate import scratch

LIBRARY = frozenset(
    {
        "all-reduce", "cholesky", "conditional", "convolution", "custom-call", "dot",
        "fft", "rng", "rng-bit-generator", "scatter", "select-and-scatter", "sort",
        "triangular-solve", "while",
    }
)  # fmt: skip
"""What reads its operands from memory and cannot be fused with them."""

_ALWAYS = LIBRARY | {"reduce", "reduce-window"}
_SAME = frozenset(
    {
        "bitcast", "copy", "get-tuple-element", "opt-barrier", "optimization-barrier",
        "reshape", "transpose",
    }
)  # fmt: skip
_FREE = frozenset({"broadcast", "constant", "iota"})
_SMALL = 1024
_TRIAL_COPIES = 3


class Stored(NamedTuple):
    """What is stored.

    Args:
        is_stored: per value, whether it has memory of its own.
        sources: per value, the stored values and parameters it is computed from;
            itself if it is stored.
    """

    is_stored: Sequence[bool]
    sources: Sequence[frozenset[int]]


def stored(program: Flat, *, fused: bool = True) -> Stored:
    """Return which values of `program` are stored.

    Args:
        program: the program.
        fused: False if every operation is a kernel of its own.
    """
    users = _users(program)
    is_stored: list[bool] = []
    sources: list[frozenset[int]] = []
    for number, value in enumerate(program.values):
        found = frozenset().union(*(sources[o] for o in value.operands))
        if fused:
            keep = _is_stored(program, users, number, found)
        else:
            keep = value.opcode not in _SAME | {"constant", "parameter"}
        is_stored.append(keep)
        is_source = keep or value.opcode == "parameter"
        sources.append(frozenset([number]) if is_source else found)
    return Stored(is_stored, sources)


def _is_stored(
    program: Flat, users: Sequence[set[int]], number: int, sources: frozenset[int]
) -> bool:
    value = program.values[number]
    if value.opcode in _ALWAYS:
        return True
    if value.opcode in _SAME | {"constant", "parameter"}:
        return False
    kernels = _kernels(program.values, users, number)
    if any(program.values[user].opcode in LIBRARY for user in kernels):
        return True
    if value.opcode in _FREE or value.nbytes <= _SMALL or len(kernels) < 2:
        return False
    read = sum(program.values[source].nbytes for source in sources)
    again = len(kernels) * read
    once = read + value.nbytes + len(kernels) * value.nbytes
    return again > once


def _kernels(
    values: Sequence[Value], users: Sequence[set[int]], number: int
) -> set[int]:
    """Return who uses a value, seen through what only changes its shape."""
    found: set[int] = set()
    waiting = [number]
    while waiting:
        for user in users[waiting.pop()]:
            if values[user].opcode in _SAME:
                waiting.append(user)
            else:
                found.add(user)
    return found


def _users(program: Flat) -> list[set[int]]:
    users: list[set[int]] = [set() for _ in program.values]
    for number, value in enumerate(program.values):
        for operand in value.operands:
            users[operand].add(number)
    return users


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
    if value.itemsize == 2 or _is_depthwise(left, right):
        return 0
    copies = left.nbytes + right.nbytes
    if left.shape[0] == right.shape[0] == value.shape[0]:
        return copies
    many = left.shape[-1] > scratch.FEW_CHANNELS
    if value.shape[0] != left.shape[0]:  # of the kernel
        return copies + scratch.SPLITS * value.nbytes if many else 0
    if "transpose(" in value.name or "Backprop" in value.name:
        return copies + value.nbytes
    return copies if many else 0


def _is_depthwise(left: Value, right: Value) -> bool:
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
    if not is_forward or _is_depthwise(left, right) or right.shape[0] < 2:
        return 0
    sizes = zip(left.shape[1:3], right.shape[:2], strict=True)
    padded = [scratch.padded_length(n, k) for n, k in sizes]
    images = left.shape[0] * (left.shape[3] + value.shape[3])
    pairs = right.shape[2] * right.shape[3]
    return scratch.fourier_bytes(padded, images, pairs, value.itemsize)
