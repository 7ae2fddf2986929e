"""Which blocks of the optimizer hold a variable or belong to one."""

import re
from collections import defaultdict
from collections.abc import Sequence

from kerasmem.memory.timeline.blocks import Draft
from kerasmem.memory.timeline.held import HeldVariables
from kerasmem.memory.timeline.watched import KnownVariable

_NUMBER = re.compile(r"_\d+$")


class Updates:
    """Finds the variable behind a block that was made in the window.

    TensorFlow copies a variable that is being read before it writes to it, so a
    variable may move to a new block in every step. Where the window closes its
    address tells; before that the same operation did the same.

    Args:
        found: all blocks of one allocator.
        held: where the model's variables lie.
    """

    def __init__(self, found: Sequence[Draft], held: HeldVariables) -> None:
        self._trained = [v for v in held.variables if v.is_trained]
        self._by_size: dict[int, set[str | None]] = defaultdict(set)
        for variable in self._trained:
            self._by_size[variable.nbytes].add(variable.layer)
        self._held = held
        self._assigned = self._assignments(found)
        self._per_variable = self._operations_per_variable(found)

    def variable(self, draft: Draft) -> KnownVariable | None:
        """Return the variable in a block, None if there is none."""
        event = draft.event
        if draft.freed_at is None:
            return self._held.at_closing(event.address, event.requested_bytes)
        variable = self._assigned.get(event.operation)
        if variable is None or variable.nbytes != event.requested_bytes:
            return None
        return variable

    def layer(self, draft: Draft) -> str | None:
        """Return the layer whose variable a block of the optimizer is for."""
        size, origin = draft.event.requested_bytes, draft.origin
        if origin.phase != "optimizer" or size not in self._by_size:
            return None
        if origin.place is not None and self._trained:
            per_variable = self._per_variable[_kind(draft)]
            index = origin.place // per_variable
            if index < len(self._trained) and self._trained[index].nbytes == size:
                return self._trained[index].layer
        layers = self._by_size[size]
        return next(iter(layers)) if len(layers) == 1 else None

    def _assignments(self, found: Sequence[Draft]) -> dict[str, KnownVariable]:
        assigned: dict[str, KnownVariable] = {}
        for draft in found:
            if draft.made and draft.freed_at is None and draft.event.operation:
                event = draft.event
                variable = self._held.at_closing(event.address, event.requested_bytes)
                if variable:
                    assigned[event.operation] = variable
        return assigned

    def _operations_per_variable(self, found: Sequence[Draft]) -> dict[str, int]:
        # An optimizer does the same to one variable after the other, so its
        # operations of one kind are numbered through, such as `adam/Square_5`.
        most: dict[str, int] = defaultdict(int)
        for draft in found:
            if draft.made and draft.origin.place is not None:
                kind = _kind(draft)
                most[kind] = max(most[kind], draft.origin.place + 1)
        variables = max(len(self._trained), 1)
        return {kind: -(-number // variables) for kind, number in most.items()}


def _kind(draft: Draft) -> str:
    return _NUMBER.sub("", draft.event.operation)
