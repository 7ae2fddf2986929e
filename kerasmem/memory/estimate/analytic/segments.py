"""Records the rematerialization of segments in a step.

Only the residuals of a segment's inputs are saved. Its activations are freed after the
forward pass and recomputed in the backward pass, as far as gradients need them. The
recomputation starts when the output gradients exist. Other operations continue after
all gradients of the segment exist. Each backend enforces this order differently.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from kerasmem.graph.activation_policy import Residuals
from kerasmem.memory.compress_activations.store import FEWEST, grouping, packed_bytes
from kerasmem.memory.program import Op, ProgramTensor, by_readiness

BARRIER = "barrier"
"""Name of an operation without effect that enforces an execution order."""

PACKING = ("codes", "floats")
"""Names of the operations that compute codes of 8 bits, and floats from them."""

_FLOAT = 4
_PACKED_AT_ONCE, _UNPACKED_AT_ONCE = 5, 3
"""Tensors of float32 that exist at once while codes or their values are computed."""

RETURN = "return"
"""End of Keras's loop over the layers, which keeps all layer outputs until then."""


@dataclass(eq=False)
class Unit:
    """One operation, or a whole pass through a segment."""

    is_piece: bool
    ops: list[Op] = field(default_factory=list[Op])

    @property
    def outputs(self) -> set[ProgramTensor]:
        """Memory owners that the unit writes."""
        return {y.root for op in self.ops for y in op.writes}


def units_of(
    ops: Sequence[Op], pieces: Sequence[AbstractSet[int]]
) -> dict[object, Unit]:
    """Return the units by segment index and phase, or by operation index."""
    units: dict[object, Unit] = {}
    places = _places(ops, pieces)
    for number, (op, piece) in enumerate(zip(ops, places, strict=True)):
        key = number if piece is None else (piece, op.phase)
        unit = units.setdefault(key, Unit(piece is not None))
        unit.ops.append(op)
    return units


def in_order(units: Sequence[Unit]) -> list[Unit]:
    """Sort the units so that each follows its inputs, otherwise in original order."""
    maker = {y: number for number, unit in enumerate(units) for y in unit.outputs}
    before = [
        {maker.get(x.root, number) for op in unit.ops for x in op.reads} - {number}
        for number, unit in enumerate(units)
    ]
    return [units[number] for number in by_readiness(before, by_number=True)]


def _places(ops: Sequence[Op], pieces: Sequence[AbstractSet[int]]) -> list[int | None]:
    piece_of = {call: number for number, calls in enumerate(pieces) for call in calls}
    places = [
        None if op.call is None or op.phase == "optimizer" else piece_of.get(op.call)
        for op in ops
    ]
    for number, place in _sums(ops, places):
        places[number] = place
    return places


def _sums(ops: Sequence[Op], places: Sequence[int | None]) -> Iterator[tuple[int, int]]:
    """Yield the gradient sums inside of a segment, with the segment index.

    Sums belong to no call. A sum is in a segment if its inputs come from the segment
    and its output is read there, possibly through other sums.
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
    readers: dict[ProgramTensor, frozenset[int | None]] = {}
    for number in range(len(ops) - 1, -1, -1):
        op, pieces = ops[number], frozenset({places[number]})
        if number in before:
            pieces = frozenset().union(*(readers.get(y.root, ()) for y in op.writes))
            for place in pieces & before[number]:
                if place is not None:
                    yield number, place
        for x in op.reads:
            readers[x.root] = readers.get(x.root, frozenset()) | pieces


@dataclass(frozen=True, eq=False)
class ReplayedSegment:
    """A segment that is recomputed in one forward pass.

    `calls` contains the indices of its model calls.
    """

    calls: frozenset[int]
    residuals: Residuals


@dataclass(frozen=True, eq=False)
class StoredActivation:
    """An activation that is saved in another form.

    `pack` computes `saved`, and `unpack` computes `restored` from it.
    """

    saved: ProgramTensor
    pack: Op
    unpack: Op
    restored: ProgramTensor


def rematerialized(ops: Sequence[Op], segments: Sequence[ReplayedSegment]) -> list[Op]:
    """Return the operations of a step with recomputed segments."""
    units = units_of(ops, [segment.calls for segment in segments])
    _return_early(units)
    readers = _readers(units)
    gates: dict[ProgramTensor, ProgramTensor] = {}
    for number, segment in enumerate(segments):
        forward = units.get((number, "forward"))
        backward = units.get((number, "backward"))
        if forward and backward:
            handed_on = [
                x for x in backward.outputs if readers.get(x, set()) - {backward}
            ]
            gates |= _Piece(segment, forward, backward).rewritten(handed_on)
    for unit in units.values():
        own = unit.outputs if unit.is_piece else set()
        signals = {x: s for x, s in gates.items() if s not in own} if own else gates
        unit.ops = [_behind(op, signals) for op in unit.ops]
    return [op for unit in in_order(list(units.values())) for op in unit.ops]


def _return_early(units: Mapping[object, Unit]) -> None:
    inner = _inner(units)
    ends = [u for u in units.values() if u.ops[0].name == RETURN]
    for end in ends:
        (op,) = end.ops
        for unit in (u for u in units.values() if u.is_piece):
            outputs = unit.outputs
            own = tuple(x for x in op.reads if x.root in outputs)
            if own:
                unit.ops.append(replace(op, reads=own))
        end.ops = [replace(op, reads=tuple(x for x in op.reads if x.root not in inner))]


def _inner(units: Mapping[object, Unit]) -> set[ProgramTensor]:
    forward = [u for u in units.values() if u.ops[0].phase == "forward"]
    maker = {y: unit for unit in forward if unit.is_piece for y in unit.outputs}
    handed_on = {
        x.root
        for unit in forward
        for op in unit.ops
        if op.name != RETURN
        for x in op.reads
        if maker.get(x.root, unit) is not unit
    }
    return maker.keys() - handed_on


def _readers(units: Mapping[object, Unit]) -> dict[ProgramTensor, set[Unit]]:
    units_by_tensor: dict[ProgramTensor, set[Unit]] = {}
    for unit in units.values():
        for op in unit.ops:
            for x in op.reads:
                units_by_tensor.setdefault(x.root, set()).add(unit)
    return units_by_tensor


def _behind(op: Op, signals: Mapping[ProgramTensor, ProgramTensor]) -> Op:
    awaited_signals = {signals[x.root]: None for x in op.reads if x.root in signals}
    return replace(op, reads=(*op.reads, *awaited_signals)) if awaited_signals else op


class _Piece:
    """Both passes through a segment, before rematerialization."""

    def __init__(self, segment: ReplayedSegment, forward: Unit, backward: Unit) -> None:
        self._forward = forward
        self._backward = backward
        self._outputs = forward.outputs
        self._again = _needed(forward, backward)
        entering = {x.root: None for op in forward.ops for x in op.reads}
        self._read = {x.root for op in (*self._again, *backward.ops) for x in op.reads}
        self._entering = entering.keys() - self._outputs
        saved_tensors = [x for x in entering if x.kind == "value" and x in self._read]
        saved_tensors = [x for x in saved_tensors if x not in self._outputs]
        self._stored = {
            x: s for x in saved_tensors if (s := _stored(segment, x)) is not None
        }
        self._waiting = [x for x in saved_tensors if x not in self._stored]
        self._waiting += [one.saved for one in self._stored.values()]

    def rewritten(
        self, handed_on: Sequence[ProgramTensor]
    ) -> dict[ProgramTensor, ProgramTensor]:
        """Rewrite both passes. Returns a signal for each tensor read outside."""
        packing, end = ProgramTensor((0,), 1), ProgramTensor((0,), 1)
        gates = {} if not self._stored else dict.fromkeys(self._outputs, packing)
        gates |= dict.fromkeys(handed_on, end)
        late = self._late()
        begin = ProgramTensor((0,), 1)
        codes = [one.saved for one in self._stored.values()]
        upstream = self._read - self._outputs - self._backward.outputs - self._entering
        self._forward.ops = [
            *(self._of(one.pack, "forward") for one in self._stored.values()),
            *self._forward.ops,
            self._wait("forward", codes, packing),
        ]
        self._backward.ops = [
            self._wait("backward", [*upstream, *self._waiting], begin),
            *(replace(op, reads=(*op.reads, begin)) for op in late),
            self._wait("backward", handed_on, end),
        ]
        return gates

    def _late(self) -> list[Op]:
        twins = {y.root: replace(y.root) for op in self._again for y in op.writes}
        twins |= {x: one.restored for x, one in self._stored.items()}
        ends = [
            replace(op, reads=tuple(x for x in op.reads if x.root in twins))
            for op in self._forward.ops
            if op.name == RETURN
        ]
        return [
            *(self._of(one.unpack, "backward") for one in self._stored.values()),
            *(_twin(op, twins) for op in (*self._again, *ends)),
            *(_twin(op, twins, again=False) for op in self._backward.ops),
        ]

    def _of(self, op: Op, phase: str) -> Op:
        first = self._forward.ops[0]
        return replace(op, layer=first.layer, phase=phase, call=first.call)

    def _wait(
        self, phase: str, reads: Sequence[ProgramTensor], signal: ProgramTensor
    ) -> Op:
        return self._of(Op(BARRIER, None, phase, tuple(reads), (signal,)), phase)


def _stored(segment: ReplayedSegment, x: ProgramTensor) -> StoredActivation | None:
    if segment.residuals is Residuals.NO_FLOATS:
        return zeros(x)
    return packed(x) if segment.residuals is Residuals.EIGHT_BITS else None


def _needed(forward: Unit, backward: Unit) -> list[Op]:
    outputs = forward.outputs
    tensors = {x.root for op in backward.ops for x in op.reads} & outputs
    ops: list[Op] = []
    for op in reversed(forward.ops):
        if any(y.root in tensors for y in op.writes):
            ops.append(op)
            tensors |= {x.root for x in op.reads} & outputs
    return ops[::-1]


def _twin(
    op: Op, twins: Mapping[ProgramTensor, ProgramTensor], *, again: bool = True
) -> Op:
    reads, over, writes = (
        tuple(_tensor(x, twins) for x in side)
        for side in (op.reads, op.over, op.writes)
    )
    op = replace(op, reads=reads, over=over)
    return replace(op, writes=writes, phase="backward") if again else op


def _tensor(
    x: ProgramTensor, twins: Mapping[ProgramTensor, ProgramTensor]
) -> ProgramTensor:
    twin = twins.get(x.root)
    if twin is None:
        return x
    return twin if x.base is None else replace(x, base=twin)


def zeros(x: ProgramTensor) -> StoredActivation:
    """Save a single number instead of `x`, and restore zeros if values are unused."""
    number, late = (
        ProgramTensor((1,), x.width, x.layer),
        ProgramTensor(x.shape, x.width, x.layer),
    )
    return StoredActivation(
        number, _op("zero", (), number), _op("zeros", (number,), late), late
    )


def packed(x: ProgramTensor) -> StoredActivation | None:
    """Save eight bits per entry, or return `None` if the tensor is not suitable."""
    if x.width > _FLOAT or grouping(x.shape).entries < FEWEST:
        return None
    codes = ProgramTensor((packed_bytes(x.shape),), 1, x.layer)
    late = ProgramTensor(x.shape, x.width, x.layer)
    space = math.prod(x.shape) * _FLOAT
    pack = replace(_op(PACKING[0], (x,), codes), workspace=_PACKED_AT_ONCE * space)
    unpack = replace(
        _op(PACKING[1], (codes,), late), workspace=_UNPACKED_AT_ONCE * space
    )
    return StoredActivation(codes, pack, unpack, late)


def _op(
    name: str,
    reads: tuple[ProgramTensor, ...],
    y: ProgramTensor,
) -> Op:
    return Op(name, None, "forward", reads, (y,), fusible=True)
