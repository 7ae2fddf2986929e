"""Which values of a program get memory of their own on a GPU.

XLA computes a value again wherever it is used if that costs less than storing it, and
never stores what only a fused kernel needs in its middle. This imitates the choice by
the bytes that are read and written; XLA itself also weighs the arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.backends.trace_hlo import Flat, Value

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


@dataclass(frozen=True)
class Stored:
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
