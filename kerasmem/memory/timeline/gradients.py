"""Which blocks of the backward phase are gradients of variables."""

from collections import defaultdict
from collections.abc import Sequence

from kerasmem.memory.timeline.blocks import Draft
from kerasmem.memory.timeline.watched import KnownVariable


class Gradients:
    """The blocks that hold the gradient of a variable; `draft in gradients` asks.

    A gradient is made in the backward phase by an operation of the variable's own
    layer, has the variable's size, and goes when the optimizer is done with it. The
    rows of a sparse gradient (Embedding) are as wide as the variable.

    Args:
        found: all blocks of one allocator.
        variables: all variables of the model.
        copies: how many gradients a variable has in the window: one per step and
            replica.
    """

    def __init__(
        self,
        found: Sequence[Draft],
        variables: Sequence[KnownVariable],
        copies: int,
    ) -> None:
        self._copies = copies
        self._trained: dict[str | None, list[KnownVariable]] = defaultdict(list)
        for variable in variables:
            if variable.is_trained:
                self._trained[variable.layer].append(variable)
        self._chosen: set[int] = set()
        self._choose(found)
        self._give_to_outer_layers()
        self._choose(found)

    def __contains__(self, draft: Draft) -> bool:
        return id(draft) in self._chosen

    def _choose(self, found: Sequence[Draft]) -> None:
        candidates: dict[tuple, list[Draft]] = defaultdict(list)
        for draft in found:
            if draft.origin.phase == "backward" and self._has_size_of_variable(draft):
                key = draft.origin.layer, draft.event.requested_bytes
                candidates[key].append(draft)
        for (layer, size), group in candidates.items():
            self._chosen.update(id(draft) for draft in self._best(layer, size, group))
            fitting = [v for v in self._trained[layer] if v.nbytes == size]
            for variable in fitting:
                self._trained[layer].remove(variable)

    def _give_to_outer_layers(self) -> None:
        """Leave variables that found no gradient to the layers around theirs."""
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
            return group  # rows of a sparse gradient
        # An update in place leaves no trace of the optimizer's use; then the
        # gradients are the ones that live longest.
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
