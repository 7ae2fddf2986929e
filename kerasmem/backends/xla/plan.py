"""XLA's memory plan of a compiled step as allocator events."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kerasmem.backends.profile import AllocatorTrace, MemoryEvent, Storage
from kerasmem.backends.xla.hlo import (
    Allocation,
    BufferPlace,
    Buffers,
    HloProgram,
    Instruction,
    read_program,
)

# Their value is an operand or contains one.
_FORWARDING = frozenset(
    {
        "add-dependency",
        "bitcast",
        "call",
        "conditional",
        "domain",
        "get-tuple-element",
        "opt-barrier",
        "optimization-barrier",
        "tuple",
        "while",
    }
)


@dataclass(frozen=True)
class Planned:
    """A buffer in the plan. Addresses are counted over consecutive allocations.

    `begin` is the position of the defining instruction, -1 for an argument. `end` is
    the position of the last use, None for a result.
    """

    address: int
    size: int
    instruction: Instruction
    index: tuple[int, ...]
    begin: int
    end: int | None


@dataclass(frozen=True)
class StepPlan:
    """The plan of a compiled step in the form of a profile."""

    trace: AllocatorTrace
    arguments: list[Storage]


def step_plan(
    module: bytes,
    buffers: Buffers,
    device: str,
    variable_of: Callable[[Instruction], int | None],
) -> StepPlan:
    """Return the plan of a compiled step.

    `variable_of` returns the variable index of an argument, None for the batch.
    """
    allocations = [each for each in buffers.allocations if not each.is_local]
    planned_buffers, reserved_bytes = _planned(
        read_program(module), buffers, allocations
    )
    arguments = [
        Storage(variable_of(one.instruction), device, one.address, one.size)
        for one in planned_buffers
        if one.begin < 0
    ]
    events = list(_events(planned_buffers, reserved_bytes))
    return StepPlan(
        AllocatorTrace(device, device, "buffer assignment", events), arguments
    )


def _planned(
    program: HloProgram, buffers: Buffers, allocations: Sequence[Allocation]
) -> tuple[list[Planned], int]:
    """Return the lifetimes of the buffers in allocations, and the total bytes."""
    lifetimes = _Lifetimes(program)
    planned_buffers, base = [], 0
    for allocation in allocations:
        own_buffers = (lifetimes.planned(x, buffers, base) for x in allocation.places)
        planned_buffers += [one for one in own_buffers if one is not None]
        base += allocation.size
    return planned_buffers, base


class _Lifetimes:
    def __init__(self, program: HloProgram) -> None:
        self._instructions: dict[int, Instruction] = {}
        self._position: dict[int, int] = {}
        self._users: dict[int, list[Instruction]] = defaultdict(list)
        self._program = program
        self._arguments = {
            instruction.number
            for instruction in program.computations[program.entry]
            if instruction.opcode == "parameter"
        }
        for position, instruction in enumerate(program.computations[program.entry]):
            self._add(instruction, position)

    def planned(
        self, place: BufferPlace, buffers: Buffers, base: int
    ) -> Planned | None:
        number, index = buffers.defined[place.buffer]
        instruction = self._instructions.get(number)
        if instruction is None or not place.size:
            return None
        is_argument = number in self._arguments
        return Planned(
            address=base + place.offset,
            size=place.size,
            instruction=instruction,
            index=index,
            begin=-1 if is_argument else self._position[number],
            end=None if is_argument else self._end(number),
        )

    def _add(self, instruction: Instruction, position: int) -> None:
        self._instructions[instruction.number] = instruction
        self._position[instruction.number] = position
        for operand in instruction.operands:
            self._users[operand].append(instruction)
        if instruction.opcode == "fusion":
            return  # buffers inside a fusion do not exist
        for computation in instruction.called:
            for inner in self._program.computations[computation]:
                self._add(inner, position)

    def _end(self, number: int) -> int | None:
        last = self._position[number]
        waiting, numbers = [number], {number}
        while waiting:
            current = waiting.pop()
            if current == self._program.roots[self._program.entry]:
                return None
            last = max(last, self._position[current])
            for user in self._users[current]:
                last = max(last, self._position[user.number])
                if user.opcode in _FORWARDING and user.number not in numbers:
                    numbers.add(user.number)
                    waiting.append(user.number)
        return last


class _Memory:
    """Buffers in use at a position of the plan."""

    def __init__(self, arguments: list[Planned], reserved: int) -> None:
        self._live = {id(one): one for one in arguments}
        self._in_use = sum(one.size for one in arguments)
        self._reserved = reserved

    def make(self, new: Planned) -> Iterator[MemoryEvent]:
        # An overwritten buffer ends with the instruction that overwrites it.
        for old in [one for one in self._live.values() if _overlap(one, new)]:
            yield from self.drop(old, new.begin)
        self._live[id(new)] = new
        self._in_use += new.size
        yield self._event(new, new.begin, is_allocation=True)

    def drop(self, old: Planned, position: int) -> Iterator[MemoryEvent]:
        if self._live.pop(id(old), None) is not None:
            self._in_use -= old.size
            yield self._event(old, position, is_allocation=False)

    def _event(
        self, one: Planned, position: int, *, is_allocation: bool
    ) -> MemoryEvent:
        shape, dtype = one.instruction.shapes.get(one.index, ("", ""))
        return MemoryEvent(
            time_ns=position,
            is_allocation=is_allocation,
            address=one.address,
            requested_bytes=one.size,
            given_bytes=one.size,
            in_use_bytes=self._in_use,
            reserved_bytes=self._reserved,
            operation=one.instruction.name if is_allocation else "",
            shape=shape,
            dtype=dtype,
        )


def _events(planned: list[Planned], reserved: int) -> Iterator[MemoryEvent]:
    memory = _Memory([one for one in planned if one.begin < 0], reserved)
    begins: dict[int, list[Planned]] = defaultdict(list)
    ends: dict[int, list[Planned]] = defaultdict(list)
    for one in planned:
        if one.begin >= 0:
            begins[one.begin].append(one)
            if one.end is not None:
                ends[one.end].append(one)
    for position in sorted({*begins, *ends}):
        for new in begins[position]:
            yield from memory.make(new)
        for old in ends[position]:
            yield from memory.drop(old, position)


def _overlap(one: Planned, other: Planned) -> bool:
    return (
        one.address < other.address + other.size
        and other.address < one.address + one.size
    )


@dataclass(frozen=True)
class PlannedBlock:
    """The temporary memory of a step and its buffers, with addresses from 0."""

    nbytes: int
    buffers: list[Planned]
    length: int

    def live(self, position: int) -> list[tuple[Planned, int]]:
        """Return the buffers in use at an instruction, with their bytes.

        Shared bytes, such as a result in the memory of an operand, count once, for the
        first buffer.
        """
        bytes_by_buffer, end = [], 0
        live = (
            one
            for one in self.buffers
            if one.begin <= position and (one.end is None or one.end >= position)
        )
        for one in sorted(live, key=lambda one: (one.address, -one.size)):
            begin = max(one.address, end)
            if (own := one.address + one.size - begin) > 0:
                bytes_by_buffer.append((one, own))
                end = begin + own
        return bytes_by_buffer

    def occupied(self, position: int) -> int:
        """Return the bytes in use at an instruction."""
        return sum(own for _, own in self.live(position))

    def fullest(self) -> int:
        """Return the first position with the maximum memory in use."""
        begins = sorted({one.begin for one in self.buffers})
        return max(begins, key=self.occupied, default=0)


def temporary_block(program: HloProgram, buffers: Buffers) -> PlannedBlock:
    """Return the temporary memory of a compiled program."""
    allocations = [each for each in buffers.allocations if each.is_temporary]
    planned_buffers, nbytes = _planned(program, buffers, allocations)
    return PlannedBlock(
        nbytes, planned_buffers, len(program.computations[program.entry])
    )
