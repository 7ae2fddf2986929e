"""Activations by a memory plan: changes the calls of a model in training, in place."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kerasmem.graph.activation_policy import ActivationPolicy, train_by
from kerasmem.memory.compress_activations.apply import NAME as COMPRESSED
from kerasmem.memory.compress_activations.plan import Ranges, Selection, policies
from kerasmem.memory.estimate.request import Input
from kerasmem.memory.plan.parts import Path, parts_at, with_graph
from kerasmem.types import Model

NAME = "rematerialize"


@dataclass(frozen=True)
class PlannedActivations:
    """Planned changes of the activations in a part of a model.

    Args:
        path: Indices of the calls that lead to the part.
        pieces: Ranges of calls to recompute.
        in_8_bits: Ranges of calls to store in 8 bits. If there are any, the calls
            outside of the part are stored in 8 bits, too.
        inputs: Inputs of a subclassed model.
        seed: Seed of the stochastic rounding.
    """

    path: Path = ()
    pieces: Ranges = ()
    in_8_bits: Ranges = ()
    inputs: tuple[Input, ...] = ()
    seed: int = 0

    def policy(self, model: Model, parts: Sequence[Any] = ()) -> ActivationPolicy:
        """Return the policy of a model without changing the model.

        `parts` are the `parts_at` the path, if known.
        """
        parts = parts or parts_at(with_graph(model, self.inputs), self.path)
        by_name = bool(self.in_8_bits)
        selection = Selection(lambda _: by_name, parts, self.pieces, self.in_8_bits)
        graphs = policies(parts[0], selection, self.seed)
        if parts[0] is not model:  # It only calls the model, which would stay alive.
            graphs = graphs[1:]
        name = COMPRESSED if self.in_8_bits else NAME
        return ActivationPolicy(name, apply_again, asdict(self), graphs)


def apply_again(model: Model, settings: Mapping[str, Any]) -> None:
    """Apply the settings to a model that was created again."""
    inputs = tuple(Input(**each) for each in settings["inputs"])
    changes = PlannedActivations(**{**settings, "inputs": inputs})
    train_by(model, changes.policy(model))
