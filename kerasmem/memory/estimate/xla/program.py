"""HLO as a program: what a compiled step stores, and until when."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from kerasmem.backends.trace_hlo import Flat, Value
from kerasmem.memory.estimate.xla.fusion import Stored, stored
from kerasmem.memory.estimate.xla.scratch import workspace
from kerasmem.memory.program import Op, Program, Tensor

Place = Callable[[Value], tuple[str, str | None]]
"""Returns category and layer of a value."""


def written(
    flat: Flat, place: Place = lambda _: ("value", None), *, fused: bool = True
) -> Program:
    """Return the program of a step on a GPU, without its variables and its batch.

    Weights are updated as soon as their gradient is there and nobody needs the old
    ones: XLA orders a program so that it needs little memory.

    Args:
        flat: the operations before XLA merges them.
        place: what a stored value is for.
        fused: False if the step runs operation by operation: then all is stored, and
            the updated weights stand beside the old ones to the end.
    """
    what = stored(flat, fused=fused)
    tensors = {
        number: _tensor(value, *place(value))
        for number, value in enumerate(flat.values)
        if what.is_stored[number]
    }
    held = _held(flat, what) if fused else {}
    ops: list[Op] = []
    for number, value in enumerate(flat.values):
        if number in tensors:
            y = tensors[number]
            sources = {s: None for o in value.operands for s in what.sources[o]}
            read = [tensors[s] for s in sources if s in tensors]
            ops.append(_op(value.opcode, y.layer, read, (y,), workspace(flat, number)))
        if number in held:
            read = [tensors[s] for s in held[number] if s in tensors]
            ops.append(_op("update", None, read))
    results = {s for result in flat.results for s in what.sources[result]}
    kept = () if fused else tuple(tensors[s] for s in sorted(results & tensors.keys()))
    return Program(tuple(ops), kept)


def _tensor(value: Value, kind: str, layer: str | None) -> Tensor:
    return Tensor((value.nbytes,), 1, layer, kind=kind)


def _op(
    name: str,
    layer: str | None,
    reads: Sequence[Tensor],
    writes: tuple[Tensor, ...] = (),
    scratch: int = 0,
) -> Op:
    return Op(name, layer, "forward", tuple(reads), writes, workspace=scratch)


def _held(flat: Flat, what: Stored) -> dict[int, list[int]]:
    """Return what the results are computed from, by the number at which they can be."""
    last = [-1] * len(flat.values)
    for number, value in enumerate(flat.values):
        if what.is_stored[number]:
            for operand in value.operands:
                for source in what.sources[operand]:
                    last[source] = max(last[source], number)
    held: dict[int, list[int]] = defaultdict(list)
    for result in flat.results:
        sources = what.sources[result]
        when = max((_ready(flat, last, source) for source in sources), default=0)
        for source in sources:
            last[source] = max(last[source], when)
        held[max(when, 0)] += sources
    return held


def _ready(flat: Flat, last: Sequence[int], source: int) -> int:
    """Return when a result may be computed from a source, or written over it."""
    return last[source] if flat.values[source].opcode == "parameter" else source
