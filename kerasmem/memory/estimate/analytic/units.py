"""Operations that follow each other whatever else could run between them."""

import heapq
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kerasmem.memory.program import Op, Tensor


@dataclass(eq=False)
class Unit:
    """One operation, or a whole pass through a piece of the model.

    Args:
        place: that of its first operation among all.
        is_piece: whether it is a pass through a piece.
        ops: the operations.
    """

    place: int
    is_piece: bool
    ops: list[Op] = field(default_factory=list[Op])

    @property
    def made(self) -> set[Tensor]:
        """The memory that it fills."""
        return {y.root for op in self.ops for y in op.writes}


def units_of(
    ops: Sequence[Op], pieces: Sequence[AbstractSet[int]]
) -> dict[object, Unit]:
    """Return the units of a step; those of pieces under their number and the phase.

    Args:
        ops: the operations in order.
        pieces: numbers of the model's calls in each piece.
    """
    units: dict[object, Unit] = {}
    places = _places(ops, pieces)
    for number, (op, piece) in enumerate(zip(ops, places, strict=True)):
        key = number if piece is None else (piece, op.phase)
        unit = units.setdefault(key, Unit(number, piece is not None))
        unit.ops.append(op)
    return units


def in_order(units: Sequence[Unit]) -> list[Unit]:
    """Return the units, each behind those that it reads from, else as they were."""
    maker = {y: unit for unit in units for y in unit.made}
    missing: dict[Unit, int] = {}
    users: dict[Unit, list[Unit]] = {}
    for unit in units:
        read = {maker.get(x.root, unit) for op in unit.ops for x in op.reads} - {unit}
        missing[unit] = len(read)
        for before in read:
            users.setdefault(before, []).append(unit)
    queue = [(unit.place, unit) for unit in units if not missing[unit]]
    heapq.heapify(queue)
    found: list[Unit] = []
    while queue:
        _, unit = heapq.heappop(queue)
        found.append(unit)
        for user in users.get(unit, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(queue, (user.place, user))
    return found


def _places(ops: Sequence[Op], pieces: Sequence[AbstractSet[int]]) -> list[int | None]:
    """Return the number of the piece that each operation is in."""
    piece_of = {call: number for number, calls in enumerate(pieces) for call in calls}
    places = [
        None if op.call is None or op.phase == "optimizer" else piece_of.get(op.call)
        for op in ops
    ]
    for number, place in _sums(ops, places):
        places[number] = place
    return places


def _sums(ops: Sequence[Op], places: Sequence[int | None]) -> Iterator[tuple[int, int]]:
    """Yield the sums of gradients that a piece makes for itself, with its number.

    They belong to no call; one is in a piece if what goes in comes from there, and what
    comes out goes there, be it by way of other sums.
    """
    sums = [
        number
        for number, op in enumerate(ops)
        if op.call is None and op.phase == "backward"
    ]
    maker = {
        y.root: frozenset({place})
        for op, place in zip(ops, places, strict=True)
        for y in op.writes
    }
    before: dict[int, frozenset[int | None]] = {}
    for number in sums:
        op = ops[number]
        before[number] = frozenset().union(*(maker.get(x.root, ()) for x in op.reads))
        maker.update((y.root, before[number]) for y in op.writes)
    readers: dict[Tensor, frozenset[int | None]] = {}
    for number in range(len(ops) - 1, -1, -1):
        op, found = ops[number], frozenset({places[number]})
        if number in before:
            found = frozenset().union(*(readers.get(y.root, ()) for y in op.writes))
            for place in found & before[number]:
                if place is not None:
                    yield number, place
        for x in op.reads:
            readers[x.root] = readers.get(x.root, frozenset()) | found
