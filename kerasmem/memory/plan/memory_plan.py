"""Applies a memory plan to a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from kerasmem.errors import ModelError
from kerasmem.graph.activation_policy import (
    ActivationPolicy,
    check_one_policy,
    train_by,
)
from kerasmem.graph.clone import clone, same_draws
from kerasmem.graph.layers import check_built, nodes_in_order
from kerasmem.graph.segments import graph_of
from kerasmem.memory.compress_activations.apply import NAME as COMPRESSED
from kerasmem.memory.plan.apply import NAME, PlannedActivations
from kerasmem.memory.plan.parts import parts_at, with_graph
from kerasmem.records.memory_plan import PlanRecord
from kerasmem.types import Model


@dataclass(frozen=True)
class MemoryPlan(PlanRecord):
    """Memory plan that can be applied to its model. See `PlanRecord` for the fields."""

    def apply(self, model: Model) -> Any:
        """Return a copy of the planned model that trains by this plan.

        `km.fit(copy, ...)` also splits batches into the micro-batches of the plan. The
        copy has the weights and settings of `model`, and a new optimizer state.

        Raises:
            ModelError: If the plan is of another model, or `model` already recomputes
                or compresses activations in another way.
        """
        check_built(model)
        check_one_policy(model, COMPRESSED if self.in_8_bits else NAME)
        copy = same_draws(clone(model), model)
        self.apply_in_place(copy)
        _PLANS[copy] = self
        return copy

    def apply_in_place(self, model: Model) -> Callable[[], None]:
        """Make `model` train by this plan. Returns the undo."""
        if not self.changes_activations:
            return lambda: None
        return train_by(model, self.policy(model))

    def policy(self, model: Model) -> ActivationPolicy:
        """Return the policy of a planned model without changing the model."""
        parts = self._parts_of(model)
        changes = PlannedActivations(
            self.path, self.ranges, self.ranges_in_8_bits, self.inputs
        )
        return changes.policy(model, parts)

    def _parts_of(self, model: Model) -> list[Any]:
        count, parts = sum(len(piece.layers) for piece in self.pieces), []
        try:
            parts = parts_at(with_graph(model, self.inputs), self.path)
            calls = len(nodes_in_order(graph_of(parts[-1])))
        except (IndexError, AttributeError):  # There is no such nested model.
            calls = 0
        # Names of operations in a copy may differ.
        if calls != count:
            raise ModelError(
                f"The plan is of another model. Expected: a model with {count} calls "
                f"of layers, as {self.model_name!r}. Received: {model.name!r} with "
                f"{calls} calls."
            )
        return parts


_PLANS: WeakKeyDictionary[Any, MemoryPlan] = WeakKeyDictionary()


def plan_of(model: Model) -> MemoryPlan | None:
    """Return the plan of a model that trains by a plan, or None for other models."""
    return _PLANS.get(model)
