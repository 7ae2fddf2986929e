"""When the stored values of a compiled step are in use."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.backends.trace_hlo import Flat
from kerasmem.memory.estimate.xla.fusion import Stored, stored
from kerasmem.memory.estimate.xla.scratch import workspace


@dataclass(frozen=True)
class Temporary:
    """The temporary memory of a step at its fullest.

    Args:
        nbytes: all of it.
        values: indices of the values in it.
        scratch_bytes: what the running kernel takes beside them.
    """

    nbytes: int
    values: Sequence[int]
    scratch_bytes: int


def temporary(program: Flat, *, fused: bool = True) -> Temporary:
    """Return the temporary memory of a step on a GPU.

    Weights are updated as soon as their gradient is there and nobody needs the old
    ones: XLA orders a program so that it needs little memory.

    Args:
        program: the program.
        fused: False if it runs operation by operation: then all is stored, and the
            updated weights stand beside the old ones to the end.
    """
    what = stored(program, fused=fused)
    frees = defaultdict(list)
    for number, last in enumerate(_last_uses(program, what, in_place=fused)):
        if what.is_stored[number]:
            frees[max(last, number)].append(number)
    alive: dict[int, int] = {}
    now, best = 0, Temporary(0, (), 0)
    for number, value in enumerate(program.values):
        if what.is_stored[number]:
            alive[number] = value.nbytes
            now += value.nbytes
            scratch = workspace(program, number)
            if now + scratch > best.nbytes:
                best = Temporary(now + scratch, tuple(alive), scratch)
        for gone in frees[number]:
            now -= alive.pop(gone)
    return best


def _last_uses(program: Flat, what: Stored, *, in_place: bool) -> list[int]:
    """Return the last use of every value, through what is computed again.

    Args:
        program: the program.
        what: which values are stored.
        in_place: whether results are written over what they replace.
    """
    last = [-1] * len(program.values)
    for number, value in enumerate(program.values):
        if what.is_stored[number]:
            for operand in value.operands:
                for source in what.sources[operand]:
                    last[source] = max(last[source], number)
    for result in program.results:
        sources = what.sources[result]
        when = max((_ready(program, last, source) for source in sources), default=0)
        when = when if in_place else len(program.values)
        for source in sources:
            last[source] = max(last[source], when)
    return last


def _ready(program: Flat, last: Sequence[int], source: int) -> int:
    """Return when a result may be computed from a source, or written over it."""
    return last[source] if program.values[source].opcode == "parameter" else source
