"""What each block is for; the categories of torch's memory profiler."""

from bisect import bisect_right
from collections.abc import Sequence

from kerasmem.memory.timeline.blocks import Draft
from kerasmem.memory.timeline.gradients import Gradients
from kerasmem.memory.timeline.held import HeldVariables
from kerasmem.memory.timeline.updates import Updates
from kerasmem.memory.timeline.watched import KnownVariable
from kerasmem.records import Block


class Categories:
    """Decides by the phase a block was made in, its lifetime, its size and its place.

    | category | a block |
    |---|---|
    | `parameter`, `optimizer_state` | that holds a variable |
    | `gradient` | made backward, of a variable's size, last used by the optimizer |
    | `activation` | made forward and still there when the backward phase begins |
    | `input` | made outside of the step, as large as one of those, or held by Python |
    | `temporary` | any other that was freed |

    Args:
        found: the blocks of one allocator.
        held: which of them hold its variables.
        steps: number of training steps in the window.
    """

    def __init__(self, found: Sequence[Draft], held: HeldVariables, steps: int) -> None:
        self._found = found
        self._held = held
        self._backward = [
            draft.allocated_at
            for draft in found
            if draft.allocated_at is not None and draft.origin.phase == "backward"
        ]
        """Numbers of the events that made something backward."""
        self._gradients = Gradients(found, held.variables, steps * held.replicas)
        self._updates = Updates(found, held)
        self._inputs = {
            draft.event.requested_bytes
            for draft in found
            if draft.made and draft.origin.phase == "input"
        }

    def blocks(self) -> list[Block]:
        """Return every block with its category and layer."""
        return [self._block(draft) for draft in self._found]

    def _block(self, draft: Draft) -> Block:
        event = draft.event
        variable = self._variable(draft)
        if variable:
            layer, category = variable.layer, variable.category
        else:
            layer, category = self._layer(draft), self._category(draft)
        return Block(
            requested_bytes=event.requested_bytes,
            given_bytes=event.given_bytes,
            address=event.address,
            allocated_at=draft.allocated_at,
            freed_at=draft.freed_at,
            operation=event.operation or (variable.name if variable else ""),
            layer=layer,
            phase=draft.origin.phase,
            category=category,
            shape=event.shape or (variable.shape if variable else ""),
            dtype=event.dtype or (variable.dtype if variable else ""),
        )

    def _variable(self, draft: Draft) -> KnownVariable | None:
        event = draft.event
        if draft.made is None:
            return self._held.taken_from_opening(event.address, event.requested_bytes)
        return self._updates.variable(draft)

    def _layer(self, draft: Draft) -> str | None:
        return draft.origin.layer or self._updates.layer(draft)

    def _category(self, draft: Draft) -> str:
        phase = draft.origin.phase
        if phase == "input":
            return "input"
        if draft.made is None:
            is_like_input = draft.event.requested_bytes in self._inputs
            return "input" if is_like_input else "unknown"
        if phase == "forward" and self._is_needed_backward(draft):
            return "activation"
        if phase == "backward" and draft in self._gradients:
            return "gradient"
        return "unknown" if draft.freed_at is None else "temporary"

    def _is_needed_backward(self, draft: Draft) -> bool:
        begin = _next_after(self._backward, draft.allocated_at or 0)
        if begin is None:
            return False
        return draft.freed_at is None or begin < draft.freed_at


def _next_after(numbers: Sequence[int], number: int) -> int | None:
    """Return the first of the ascending `numbers` that is larger, None if none is."""
    place = bisect_right(numbers, number)
    return numbers[place] if place < len(numbers) else None
