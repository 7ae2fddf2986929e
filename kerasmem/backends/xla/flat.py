"""A step as XLA gets it, before any optimization: one flat list of values."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.backends.protobuf import fields
from kerasmem.backends.xla.hlo import Instruction, read_program

_BARRIERS = ("opt-barrier", "optimization-barrier")
_WIDTHS = {"bool": 1, "bfloat16": 2, "complex64": 8, "complex128": 16}


@dataclass(frozen=True, slots=True)
class Value:
    """What an instruction computes.

    Args:
        opcode: such as `"dot"`.
        name: the framework's name of the operation.
        operands: indices of the values it takes.
        shape: its shape; of a tuple that of its first member.
        itemsize: bytes of an entry.
        nbytes: bytes of all of it.
    """

    opcode: str
    name: str
    operands: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int
    nbytes: int


@dataclass(frozen=True)
class Flat:
    """A program without calls.

    Args:
        values: in the order of the program.
        results: indices of the values that the caller gets.
    """

    values: Sequence[Value]
    results: Sequence[int]


def read_flat(module: bytes) -> Flat:
    """Return a serialized `HloModuleProto` with its calls opened."""
    return _Flattening(module).result()


class _Flattening:
    def __init__(self, module: bytes) -> None:
        self._program = read_program(module)
        self._numbers = dict(_numbers(module))
        self._roots = dict(_roots(module))
        self._values: list[Value] = []

    def result(self) -> Flat:
        root = self._open(self._program.entry, None)
        return Flat(self._values, list(_leaves(root)))

    def _open(self, computation: int, arguments: Sequence[Any] | None) -> Any:
        """Return the root's value: an index, or a list for a tuple."""
        found: dict[int, Any] = {}
        for one in self._program.computations[computation]:
            found[one.number] = self._value(one, found, arguments)
        return found[self._roots[computation]]

    def _value(
        self, one: Instruction, found: dict[int, Any], arguments: Sequence[Any] | None
    ) -> Any:
        parameter, element = self._numbers[one.number]
        operands = [found[number] for number in one.operands]
        if one.opcode == "parameter" and arguments is not None:
            return arguments[parameter]
        if one.opcode == "call":
            return self._open(one.called[0], operands)
        if one.opcode == "tuple":
            return operands
        if one.opcode in _BARRIERS:
            return operands[0]  # what goes in comes out, each for itself
        if one.opcode == "get-tuple-element" and isinstance(operands[0], list):
            return operands[0][element]
        self._values.append(_value(one, tuple(_leaves(operands))))
        return len(self._values) - 1


def _leaves(nest: Any) -> Iterator[int]:
    if isinstance(nest, list):
        for inner in nest:
            yield from _leaves(inner)
    else:
        yield nest


def _value(one: Instruction, operands: tuple[int, ...]) -> Value:
    arrays = [_array(text, dtype) for text, dtype in one.shapes.values() if dtype]
    shape, itemsize = arrays[0] if arrays else ((), 0)
    return Value(
        opcode=one.opcode,
        name=one.name,
        operands=operands,
        shape=shape,
        itemsize=itemsize,
        nbytes=sum(math.prod(sizes) * width for sizes, width in arrays),
    )


def _array(shape: str, dtype: str) -> tuple[tuple[int, ...], int]:
    sizes = tuple(int(size) for size in shape.strip("[]").split(",") if size)
    digits = "".join(filter(str.isdigit, dtype.partition("_")[0]))
    return sizes, _WIDTHS.get(dtype, max(int(digits or 8) // 8, 1))


def _numbers(module: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield identifier, parameter number and tuple index of every instruction.

    The numbers of the fields are those of `hlo.proto`.
    """
    for computation in _members(module, 3):
        for instruction in _members(computation, 2):
            content = _integers(instruction)
            yield content.get(35, 0), (content.get(9, 0), content.get(13, 0))


def _roots(module: bytes) -> Iterator[tuple[int, int]]:
    for computation in _members(module, 3):
        content = _integers(computation)
        yield content.get(5, 0), content.get(6, 0)


def _members(content: bytes | memoryview, number: int) -> Iterator[Any]:
    return (value for key, value in fields(memoryview(content)) if key == number)


def _integers(content: Any) -> dict[int, int]:
    """Return the fields that are single numbers."""
    pairs = fields(memoryview(content))
    return {key: value for key, value in pairs if isinstance(value, int)}
