"""Assigns a category to each memory block."""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from kerasmem.backends.profile import AllocatorTrace, MemoryEvent, Profile
from kerasmem.memory.timeline.blocks import Draft, change, consistent, drafts
from kerasmem.memory.timeline.names import Names
from kerasmem.memory.timeline.watched import HeldVariables, KnownVariable, Watched
from kerasmem.records import Block, Timeline


class Gradients:
    """The blocks that hold gradients, as a container for `draft in gradients`.

    A gradient is allocated in the backward phase by an operation of the variable's
    layer. Its size equals the size of the variable, and the optimizer uses it last. A
    sparse gradient (Embedding) has rows of the same width as the variable. `copies` is
    the number of gradients per variable: one per step and replica.
    """

    def __init__(
        self, drafts: Sequence[Draft], variables: Sequence[KnownVariable], copies: int
    ) -> None:
        self._copies = copies
        self._trained: dict[str | None, list[KnownVariable]] = defaultdict(list)
        for variable in variables:
            if variable.is_trained:
                self._trained[variable.layer].append(variable)
        self._chosen: set[int] = set()
        self._choose(drafts)
        self._give_to_outer_layers()
        self._choose(drafts)

    def __contains__(self, draft: Draft) -> bool:
        return id(draft) in self._chosen

    def _choose(self, drafts: Sequence[Draft]) -> None:
        candidates: dict[tuple, list[Draft]] = defaultdict(list)
        for draft in drafts:
            if draft.origin.phase == "backward" and self._has_size_of_variable(draft):
                key = draft.origin.layer, draft.event.requested_bytes
                candidates[key].append(draft)
        for (layer, size), group in candidates.items():
            self._chosen.update(id(draft) for draft in self._best(layer, size, group))
            fitting = [v for v in self._trained[layer] if v.nbytes == size]
            for variable in fitting:
                self._trained[layer].remove(variable)

    def _give_to_outer_layers(self) -> None:
        for layer, variables in list(self._trained.items()):
            outer = (layer or "").rpartition("/")[0]
            if outer:
                self._trained[outer] = self._trained[outer] + variables
                variables.clear()

    def _has_size_of_variable(self, draft: Draft) -> bool:
        event = draft.event
        return any(
            event.requested_bytes == variable.nbytes
            or (_is_used_by_optimizer(draft) and _has_rows_of(variable, event.shape))
            for variable in self._trained[draft.origin.layer]
        )

    def _best(self, layer: str | None, size: int, group: list[Draft]) -> list[Draft]:
        variables = sum(variable.nbytes == size for variable in self._trained[layer])
        if not variables:
            return group  # Rows of a sparse gradient.
        # In-place updates leave no trace of the optimizer. The gradients are then the
        # blocks with the longest lifetime.
        group.sort(key=lambda draft: (_is_used_by_optimizer(draft), _lifetime(draft)))
        return group[-variables * self._copies :]


def _is_used_by_optimizer(draft: Draft) -> bool:
    return draft.after == "optimizer"


def _has_rows_of(variable: KnownVariable, shape: str) -> bool:
    if not variable.name.endswith("/embeddings"):
        return False
    sizes, rows = variable.shape[1:-1].split(","), shape[1:-1].split(",")
    return len(sizes) == len(rows) == 2 and sizes[1] == rows[1]


def _lifetime(draft: Draft) -> float:
    if draft.freed_at is None:
        return float("inf")
    return draft.freed_at - (draft.allocated_at or 0)


_NUMBER = re.compile(r"_\d+$")


class Updates:
    """Finds the variable in a block allocated during the window.

    TensorFlow copies a variable before writing if the variable is being read. A
    variable can therefore move in every step. Its address at the end of the window
    identifies the operation that writes the variable in every step.
    """

    def __init__(self, drafts: Sequence[Draft], held: HeldVariables) -> None:
        self._trained = [v for v in held.variables if v.is_trained]
        self._by_size: dict[int, set[str | None]] = defaultdict(set)
        for variable in self._trained:
            self._by_size[variable.nbytes].add(variable.layer)
        self._held = held
        self._assigned = self._assignments(drafts)
        self._per_variable = self._operations_per_variable(drafts)

    def variable(self, draft: Draft) -> KnownVariable | None:
        """Return the variable in a block, or `None`."""
        event = draft.event
        if draft.freed_at is None:
            return self._held.at_closing(event.address, event.requested_bytes)
        variable = self._assigned.get(event.operation)
        if variable is None or variable.nbytes != event.requested_bytes:
            return None
        return variable

    def layer(self, draft: Draft) -> str | None:
        """Return the layer of the variable updated by a block of the optimizer."""
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

    def _assignments(self, drafts: Sequence[Draft]) -> dict[str, KnownVariable]:
        variables: dict[str, KnownVariable] = {}
        for draft in drafts:
            if draft.freed_at is None and draft.event.operation:
                event = draft.event
                variable = self._held.at_closing(event.address, event.requested_bytes)
                if variable:
                    variables[event.operation] = variable
        return variables

    def _operations_per_variable(self, drafts: Sequence[Draft]) -> dict[str, int]:
        # An optimizer updates one variable after the other, so its operations of one
        # type are numbered consecutively, such as `adam/Square_5`.
        most: dict[str, int] = defaultdict(int)
        for draft in drafts:
            if draft.allocated_at is not None and draft.origin.place is not None:
                kind = _kind(draft)
                most[kind] = max(most[kind], draft.origin.place + 1)
        variables = max(len(self._trained), 1)
        return {kind: -(-number // variables) for kind, number in most.items()}


def _kind(draft: Draft) -> str:
    return _NUMBER.sub("", draft.event.operation)


class Categories:
    """Categorizes blocks by their phase, lifetime, size and origin.

    | category | block |
    |---|---|
    | `parameter`, `optimizer_state` | holds a variable |
    | `gradient` | of a variable's size and last read by the optimizer |
    | `activation` | from the forward phase, still in use in the backward phase |
    | `input` | from outside of the step, of an input's size, or referenced by Python |
    | `temporary` | any other block that was freed |
    """

    def __init__(
        self, drafts: Sequence[Draft], held: HeldVariables, steps: int
    ) -> None:
        self._drafts = drafts
        self._held = held
        self._backward = [
            draft.allocated_at
            for draft in drafts
            if draft.allocated_at is not None and draft.origin.phase == "backward"
        ]
        """Indices of the allocations in the backward phase."""
        self._gradients = Gradients(drafts, held.variables, steps * held.replicas)
        self._updates = Updates(drafts, held)
        self._inputs = {
            draft.event.requested_bytes
            for draft in drafts
            if draft.allocated_at is not None and draft.origin.phase == "input"
        }

    def blocks(self) -> list[Block]:
        """Return all blocks with their category and layer."""
        return [self._block(draft) for draft in self._drafts]

    def _block(self, draft: Draft) -> Block:
        event = draft.event
        variable = self._variable(draft)
        if variable:
            layer, category = variable.layer, variable.category
        else:
            layer = draft.origin.layer or self._updates.layer(draft)
            category = self._category(draft)
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
        if draft.allocated_at is None:
            return self._held.taken_from_opening(event.address, event.requested_bytes)
        return self._updates.variable(draft)

    def _category(self, draft: Draft) -> str:
        phase = draft.origin.phase
        if phase == "input":
            return "input"
        if draft.allocated_at is None:
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
    place = bisect_right(numbers, number)
    return numbers[place] if place < len(numbers) else None


def timelines(
    profile: Profile, model: Watched, style: str, steps: range
) -> list[Timeline]:
    """Return one timeline per allocator, largest peak first.

    At every event, the sum of the blocks in use equals the allocator's count. `style`
    is the naming style of operations, as in `MemoryProfiler.names`.
    """
    names = Names(model, style)
    by_allocator = []
    for trace in profile.traces:
        if trace.events:
            variables = HeldVariables(
                model, trace.device, profile.opening, profile.closing
            )
            by_allocator.append(_timeline(trace, names, variables, steps))
    return sorted(by_allocator, key=lambda timeline: -timeline.peak_bytes)


def _timeline(
    trace: AllocatorTrace, names: Names, held: HeldVariables, steps: range
) -> Timeline:
    if trace.source == "buffer assignment":
        steps = steps[:1]  # The buffer assignment is identical for all steps.
    events = consistent(trace.events)
    first = events[0]
    opening_bytes = first.in_use_bytes - change(first)
    block_drafts = drafts(events, names)
    blocks = Categories(block_drafts, held, len(steps)).blocks()
    opening_block_bytes = sum(b.given_bytes for b in blocks if b.allocated_at is None)
    blocks += held.still_there(
        opening_bytes - opening_block_bytes, trace.rounding_bytes
    )
    return Timeline(
        allocator=trace.allocator,
        source=trace.source,
        first_step=steps.start,
        steps=len(steps),
        opening_bytes=opening_bytes,
        times_ns=tuple(event.time_ns - first.time_ns for event in events),
        in_use_bytes=tuple(event.in_use_bytes for event in events),
        reserved_bytes=_series(events, "reserved_bytes"),
        fragmentation=tuple(
            0.0 if math.isnan(share) else round(share, 4)
            for share in _series(events, "fragmentation")
        ),
        blocks=tuple(blocks),
        lost_events=len(trace.events) - len(events),
    )


def _series(events: Sequence[MemoryEvent], name: str) -> tuple:
    values = tuple(getattr(event, name) for event in events)
    return () if None in values else values
