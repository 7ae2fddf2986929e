"""Helpers of techniques: seeding, weight constraints and fine-tuning."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from keras import ops

from kerasmem.backends import current
from kerasmem.backends.seeding import seeded
from kerasmem.compression.technique import Context, Technique
from kerasmem.graph.outputs import without_preprocessor
from kerasmem.stages import TRAINING, stage
from kerasmem.types import Model, Variable


def seeded_at(context: Context, place: int) -> Any:
    """Returns a scope with a seed derived from the context's seed and a position."""
    if context.seed is None:
        return seeded(None)
    seeds = np.random.SeedSequence([context.seed, place]).generate_state(1)
    return seeded(int(seeds[0]))


@contextmanager
def preserving(
    context: Context, steps: Sequence[Technique], model: Model, trainer: Model
) -> Iterator[None]:
    """Preserves the effects of `steps` while `trainer` trains `model`."""
    with ExitStack() as scopes:
        # A search drops many models, so compiled graphs must not accumulate.
        scopes.callback(current().release_graphs)
        for step in steps:
            scopes.enter_context(context.preserve(step, model, trainer))
        yield


def fine_tune(model: Model, step: Technique, context: Context) -> None:
    """Trains a model in place after a step."""
    with preserving(context, [*context.earlier, step], model, model):
        stage(TRAINING)
        with without_preprocessor([model]):
            model.fit(**context.fit, epochs=context.epochs)


class _Constraints:
    """Chains additional constraints after the original constraint of a variable."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.behind: list[Callable[[Any], Any]] = []

    def __call__(self, value: Any) -> Any:
        value = ops.convert_to_tensor(value if self.own is None else self.own(value))
        for constraint in self.behind:
            value = constraint(value)
        return value


def constrain(
    variable: Variable, constraint: Callable[[Any], Any]
) -> Callable[[], None]:
    """Adds a constraint to a variable and returns a function that removes it.

    The optimizer applies it in the compiled update step, after the original constraint.
    Several constraints can be removed in any order.
    """
    own = variable.constraint
    all_of_them = own if isinstance(own, _Constraints) else _Constraints(own)
    all_of_them.behind.append(constraint)
    variable.constraint = all_of_them

    def undo() -> None:
        if constraint in all_of_them.behind:
            all_of_them.behind.remove(constraint)
        if not all_of_them.behind and variable.constraint is all_of_them:
            variable.constraint = all_of_them.own

    return undo
