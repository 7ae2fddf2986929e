"""Attributes the temporary block of a plan to layers, categories and buffers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from kerasmem.backends.xla.plan import Planned, PlannedBlock
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.names import Names
from kerasmem.records import EstimateBuffer, EstimatePart

_MOST_BUFFERS = 20
_SCRATCH = (1,)
"""Index of the workspace in the result of a library call."""


class BufferOwners:
    """Maps each buffer of a plan to its layer and category."""

    def __init__(self, request: Request) -> None:
        # Generation calls the layers of the backbone one by one.
        is_whole = request.generate is None
        model, _ = watched(request.model if is_whole else request.model.backbone)
        if request.optimizer is not None:
            model = replace(model, optimizers=(request.optimizer.name,))
        style = "tensorflow" if request.backend == "tensorflow" else "xla"
        self._names = Names(model, style)

    def contents(
        self, block: PlannedBlock, position: int
    ) -> tuple[list[EstimatePart], tuple[EstimateBuffer, ...]]:
        """Return the parts in the block at an instruction, and the largest buffers."""
        parts, buffers = [], []
        for one, own in block.live(position):
            place = self._place(one)
            parts.append(EstimatePart(*place, own))
            buffers.append(_buffer(one, own, *place))
        buffers.sort(key=lambda buffer: -buffer.nbytes)
        return parts, tuple(buffers[:_MOST_BUFFERS])

    def _place(self, one: Planned) -> tuple[str, str | None]:
        category, layer = self._names.place(one.instruction.name, one.size)
        is_scratch = one.instruction.target and one.index == _SCRATCH
        return "workspace" if is_scratch else category, layer


def _buffer(one: Planned, own: int, category: str, layer: str | None) -> EstimateBuffer:
    shape, dtype = one.instruction.shapes.get(one.index, ("", ""))
    return EstimateBuffer(category, layer, own, shape, dtype, one.instruction.name)


def merged(parts: Iterable[EstimatePart]) -> list[EstimatePart]:
    """Sum parts by category and layer, sorted by size in descending order."""
    sums: Counter[tuple[str, str | None]] = Counter()
    for part in parts:
        sums[part.category, part.layer] += part.nbytes
    return [EstimatePart(*place, size) for place, size in sums.most_common()]
