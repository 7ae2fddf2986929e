"""A compiled XLA program and its buffers, read from XLA's own protocol buffers.

The numbers are those of `hlo.proto` and `xla_data.proto`. TensorFlow brings classes for
them, but importing it takes a JAX process seconds and much memory.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kerasmem.backends.protobuf import fields, packed

_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8",
    7: "uint16", 8: "uint32", 9: "uint64", 10: "float16", 11: "float32",
    12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Args:
        number: its identifier.
        opcode: such as `"fusion"`.
        name: the framework's name of the operation; where XLA has added the
            instruction that of what is inside of it or of its operand, at last XLA's
            own.
        label: XLA's own name.
        operands: identifiers of the instructions whose values it takes.
        called: identifiers of the computations that it runs.
        shapes: shape and dtype by index into its value, which may be a tuple.
        parameter: number of the argument that it is, 0 if it is none.
    """

    number: int
    opcode: str
    name: str
    label: str
    operands: tuple[int, ...]
    called: tuple[int, ...]
    shapes: dict[tuple[int, ...], tuple[str, str]]
    parameter: int = 0


@dataclass(frozen=True)
class Program:
    """A scheduled program.

    Args:
        entry: identifier of the computation that it begins with.
        computations: their instructions in order, by identifier.
        root: identifier of the instruction that is the result.
    """

    entry: int
    computations: dict[int, list[Instruction]]
    root: int


@dataclass(frozen=True)
class Place:
    """A buffer in an allocation."""

    buffer: int
    offset: int
    size: int


@dataclass(frozen=True)
class Allocation:
    """A piece of memory that buffers share.

    Args:
        size: in bytes.
        is_local: whether it is on the stack of a thread.
        is_argument: whether the caller brings it.
        is_result: whether the caller gets it.
        places: what lies in it, at one time or another.
    """

    size: int
    is_local: bool
    is_argument: bool
    is_result: bool
    places: list[Place]


@dataclass(frozen=True)
class Buffers:
    """XLA's buffer assignment.

    Args:
        defined: instruction and index into its value, by identifier of a buffer.
        allocations: all of them.
    """

    defined: dict[int, tuple[int, tuple[int, ...]]]
    allocations: list[Allocation]


def read_program(module: bytes) -> Program:
    """Return a serialized `HloModuleProto`."""
    content = _Message(module)
    instructions: dict[int, dict[int, Instruction]] = {}
    roots: dict[int, int] = {}
    for computation in map(_Message, content.all(3)):
        number = computation.number(5)
        roots[number] = computation.number(6)
        found = map(_instruction, computation.all(2))
        instructions[number] = {one.number: one for one in found}
    order = _schedule(content)
    computations = {
        number: [inside[key] for key in order.get(number, inside)]
        for number, inside in instructions.items()
    }
    entry = content.number(6)
    return Program(entry, _named(computations), roots[entry])


def _named(
    computations: dict[int, list[Instruction]],
) -> dict[int, list[Instruction]]:
    """Return the same with a name for every instruction."""
    inside = {
        number: next((i.name for i in reversed(found) if i.name), "")
        for number, found in computations.items()
    }
    known: dict[int, str] = {}
    for instruction in itertools.chain(*computations.values()):
        names = [
            instruction.name,
            *(inside.get(number, "") for number in instruction.called),
            *(known.get(number, "") for number in instruction.operands),
            instruction.label,
        ]
        known[instruction.number] = next(name for name in names if name)
    return {
        number: [replace(one, name=known[one.number]) for one in found]
        for number, found in computations.items()
    }


def read_buffers(assignment: bytes) -> Buffers:
    """Return a serialized `BufferAssignmentProto`."""
    content = _Message(assignment)
    defined = {}
    for buffer in map(_Message, content.all(1)):
        where = _Message(buffer.last(3))
        defined[buffer.number(1)] = (where.number(4), where.numbers(3))
    return Buffers(defined, [_allocation(_Message(one)) for one in content.all(3)])


def _schedule(module: "_Message") -> dict[int, tuple[int, ...]]:
    schedule = _Message(module.last(7))
    order = {}
    for entry in map(_Message, schedule.all(1)):
        order[entry.number(1)] = _Message(entry.last(2)).numbers(1)
    return order


def _instruction(message: Any) -> Instruction:
    content = _Message(message)
    metadata = _Message(content.last(7))
    return Instruction(
        number=content.number(35),
        opcode=content.text(2),
        name=metadata.text(2),
        label=content.text(1) or content.text(2),
        operands=content.numbers(36),
        called=content.numbers(38),
        shapes=dict(_shapes(_Message(content.last(3)), ())),
        parameter=content.number(9),
    )


def _shapes(
    shape: "_Message", index: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[str, str]]]:
    sizes = ",".join(map(str, shape.numbers(3)))
    yield index, (f"[{sizes}]", _DTYPES.get(shape.number(2), ""))
    for number, inner in enumerate(shape.all(4)):
        yield from _shapes(_Message(inner), (*index, number))


def _allocation(content: "_Message") -> Allocation:
    places = [
        Place(place.number(1), place.number(2), place.number(3))
        for place in map(_Message, content.all(9))
    ]
    return Allocation(
        size=content.number(2),
        is_local=bool(content.number(3)),
        is_argument=bool(content.number(5)),
        is_result=bool(content.number(7)),
        places=places,
    )


class _Message:
    """The fields of a protocol buffer by number; what is missing is empty or 0."""

    def __init__(self, content: bytes | memoryview) -> None:
        self._fields: dict[int, list[Any]] = {}
        for number, value in fields(memoryview(content)):
            self._fields.setdefault(number, []).append(value)

    def all(self, number: int) -> list[Any]:
        return self._fields.get(number, [])

    def last(self, number: int) -> Any:
        return self._fields.get(number, [b""])[-1]

    def number(self, number: int) -> int:
        return self._fields.get(number, [0])[-1]

    def text(self, number: int) -> str:
        return bytes(self.last(number)).decode()

    def numbers(self, number: int) -> tuple[int, ...]:
        """Return a repeated number, packed or not."""
        found: list[int] = []
        for value in self.all(number):
            found += [value] if isinstance(value, int) else packed(value)
        return tuple(found)
