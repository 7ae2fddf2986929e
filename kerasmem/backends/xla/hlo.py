"""Compiled XLA programs and buffers, parsed from protocol buffers.

Field numbers are from `hlo.proto` and `xla_data.proto`. The classes in TensorFlow would
cost a JAX process seconds and much memory.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kerasmem.backends.protobuf import Message

_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8",
    7: "uint16", 8: "uint32", 9: "uint64", 10: "float16", 11: "float32",
    12: "float64", 15: "complex64", 16: "bfloat16", 18: "complex128",
    19: "float8_e5m2", 20: "float8_e4m3fn",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConvolutionAxes:
    """Axis indices of the image, kernel and result of a convolution.

    A gradient has the axes of its forward convolution. `kernel_into` and `kernel_out`
    are the axes of the input and output channels.
    """

    image_space: tuple[int, ...]
    kernel_into: int
    kernel_out: int
    strides: tuple[int, ...]
    groups: int


def read_axes(instruction: Message) -> ConvolutionAxes | None:
    """Return the axes of a convolution, None for any other `HloInstructionProto`."""
    if not instruction.all(16):
        return None
    axes = Message(instruction.last(16))
    window = map(Message, Message(instruction.last(15)).all(1))
    return ConvolutionAxes(
        image_space=axes.numbers(11),
        kernel_into=axes.number(3),
        kernel_out=axes.number(4),
        strides=tuple(one.number(2) for one in window),
        groups=max(1, instruction.number(50)),
    )


@dataclass(frozen=True, slots=True)
class Instruction:
    """An HLO instruction.

    Instructions added by XLA have the `name` of an inner instruction or operand, or
    XLA's name (`label`). `shapes` has shape and dtype by index into the value, which
    may be a tuple. `element` is the index of a tuple element that is read. `target` is
    the function of a custom call, such as `"__cublas$gemm"`.
    """

    number: int
    opcode: str
    name: str
    label: str
    operands: tuple[int, ...]
    called: tuple[int, ...]
    shapes: dict[tuple[int, ...], tuple[str, str]]
    parameter: int = 0
    element: int = 0
    target: str = ""
    axes: ConvolutionAxes | None = None


@dataclass(frozen=True)
class HloProgram:
    """A scheduled program: entry, instructions and result by computation identifier."""

    entry: int
    computations: dict[int, list[Instruction]]
    roots: dict[int, int]


@dataclass(frozen=True)
class BufferPlace:
    """A buffer in an allocation."""

    buffer: int
    offset: int
    size: int


@dataclass(frozen=True)
class Allocation:
    """A block of memory that buffers share at different times.

    The caller provides arguments and gets results. Local memory is on a thread's stack.
    """

    size: int
    is_local: bool
    is_argument: bool
    is_result: bool
    places: list[BufferPlace]
    is_constant: bool = False

    @property
    def is_temporary(self) -> bool:
        """Whether the step allocates and frees the memory."""
        other = self.is_argument or self.is_result or self.is_constant
        return not (other or self.is_local)


@dataclass(frozen=True)
class Buffers:
    """XLA's buffer assignment.

    `defined` maps a buffer to its instruction and an index into the instruction's
    value.
    """

    defined: dict[int, tuple[int, tuple[int, ...]]]
    allocations: list[Allocation]

    @property
    def scratch_bytes(self) -> int:
        """Size of the block that the program requests from the allocator."""
        return max((a.size for a in self.allocations if a.is_temporary), default=0)


def read_program(module: bytes) -> HloProgram:
    """Parse a serialized `HloModuleProto`."""
    content = Message(module)
    instructions: dict[int, dict[int, Instruction]] = {}
    roots: dict[int, int] = {}
    for computation in map(Message, content.all(3)):
        number = computation.number(5)
        roots[number] = computation.number(6)
        own_instructions = map(_instruction, computation.all(2))
        instructions[number] = {one.number: one for one in own_instructions}
    order = _schedule(content)
    computations = {
        number: [inside[key] for key in order.get(number, inside)]
        for number, inside in instructions.items()
    }
    return HloProgram(content.number(6), _named(computations), roots)


def _named(
    computations: dict[int, list[Instruction]],
) -> dict[int, list[Instruction]]:
    inside = {
        number: next((i.name for i in reversed(instructions) if i.name), "")
        for number, instructions in computations.items()
    }
    name_by_number: dict[int, str] = {}
    for instruction in itertools.chain(*computations.values()):
        names = [
            instruction.name,
            *(inside.get(number, "") for number in instruction.called),
            *(name_by_number.get(number, "") for number in instruction.operands),
            instruction.label,
        ]
        name_by_number[instruction.number] = next(name for name in names if name)
    return {
        number: [replace(one, name=name_by_number[one.number]) for one in instructions]
        for number, instructions in computations.items()
    }


def read_buffers(assignment: bytes) -> Buffers:
    """Parse a serialized `BufferAssignmentProto`."""
    content = Message(assignment)
    definitions = {}
    for buffer in map(Message, content.all(1)):
        where = Message(buffer.last(3))
        definitions[buffer.number(1)] = (where.number(4), where.numbers(3))
    return Buffers(definitions, [_allocation(Message(one)) for one in content.all(3)])


def _schedule(module: Message) -> dict[int, tuple[int, ...]]:
    schedule = Message(module.last(7))
    order = {}
    for entry in map(Message, schedule.all(1)):
        order[entry.number(1)] = Message(entry.last(2)).numbers(1)
    return order


def _instruction(message: Any) -> Instruction:
    content = Message(message)
    metadata = Message(content.last(7))
    return Instruction(
        number=content.number(35),
        opcode=content.text(2),
        name=metadata.text(2),
        label=content.text(1) or content.text(2),
        operands=content.numbers(36),
        called=content.numbers(38),
        shapes=dict(_shapes(Message(content.last(3)), ())),
        parameter=content.number(9),
        element=content.number(13),
        target=content.text(28),
        axes=read_axes(content),
    )


def _shapes(
    shape: Message, index: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[str, str]]]:
    sizes = ",".join(map(str, shape.numbers(3)))
    yield index, (f"[{sizes}]", _DTYPES.get(shape.number(2), ""))
    for number, inner in enumerate(shape.all(4)):
        yield from _shapes(Message(inner), (*index, number))


def _allocation(content: Message) -> Allocation:
    places = [
        BufferPlace(place.number(1), place.number(2), place.number(3))
        for place in map(Message, content.all(9))
    ]
    return Allocation(
        size=content.number(2),
        is_local=bool(content.number(3)),
        is_argument=bool(content.number(5)),
        is_result=bool(content.number(7)),
        places=places,
        is_constant=bool(content.number(12)),
    )


_BARRIERS = ("opt-barrier", "optimization-barrier")
_WIDTHS = {"bool": 1, "bfloat16": 2, "complex64": 8, "complex128": 16}


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an instruction. `shape` is for the first element of a tuple."""

    opcode: str
    name: str
    operands: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int
    nbytes: int


@dataclass(frozen=True)
class Flat:
    """A program with inlined calls: values in program order and returned values."""

    values: Sequence[Value]
    results: Sequence[int]


def read_flat(module: bytes) -> Flat:
    """Parse a serialized `HloModuleProto` and inline its calls."""
    return _Flattening(module).result()


class _Flattening:
    def __init__(self, module: bytes) -> None:
        self._program = read_program(module)
        self._values: list[Value] = []

    def result(self) -> Flat:
        root = self._open(self._program.entry, None)
        return Flat(self._values, list(_leaves(root)))

    def _open(self, computation: int, arguments: Sequence[Any] | None) -> Any:
        by_number: dict[int, Any] = {}
        for one in self._program.computations[computation]:
            by_number[one.number] = self._value(one, by_number, arguments)
        return by_number[self._program.roots[computation]]

    def _value(
        self,
        one: Instruction,
        by_number: dict[int, Any],
        arguments: Sequence[Any] | None,
    ) -> Any:
        operands = [by_number[number] for number in one.operands]
        if one.opcode == "parameter" and arguments is not None:
            return arguments[one.parameter]
        if one.opcode == "call":
            return self._open(one.called[0], operands)
        if one.opcode == "tuple":
            return operands
        if one.opcode in _BARRIERS:
            return operands[0]  # a barrier returns its operands unchanged
        if one.opcode == "get-tuple-element" and isinstance(operands[0], list):
            return operands[0][one.element]
        self._values.append(_value(one, tuple(_leaves(operands))))
        return len(self._values) - 1


def _leaves(nest: Any) -> Iterator[int]:
    if isinstance(nest, list):
        for inner in nest:
            yield from _leaves(inner)
    else:
        yield nest


def _value(one: Instruction, operands: tuple[int, ...]) -> Value:
    arrays = [array_size(text, dtype) for text, dtype in one.shapes.values() if dtype]
    shape, itemsize = arrays[0] if arrays else ((), 0)
    return Value(
        opcode=one.opcode,
        name=one.name,
        operands=operands,
        shape=shape,
        itemsize=itemsize,
        nbytes=sum(math.prod(sizes) * width for sizes, width in arrays),
    )


def array_size(shape: str, dtype: str) -> tuple[tuple[int, ...], int]:
    """Return the shape and the bytes per entry of an array.

    Example:
        >>> array_size("[64,10]", "float32")
        ((64, 10), 4)
    """
    sizes = tuple(int(size) for size in shape.strip("[]").split(",") if size)
    digits = "".join(filter(str.isdigit, dtype.partition("_")[0]))
    return sizes, _WIDTHS.get(dtype, max(int(digits or 8) // 8, 1))
