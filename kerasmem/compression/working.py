"""What techniques do with a model: copy it, seed, constrain weights, fine-tune."""

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
    """Return a scope whose random numbers the seed and a place in a chain decide."""
    if context.seed is None:
        return seeded(None)
    seeds = np.random.SeedSequence([context.seed, place]).generate_state(1)
    return seeded(int(seeds[0]))


@contextmanager
def preserving(
    context: Context, steps: Sequence[Technique], model: Model, trainer: Model
) -> Iterator[None]:
    """Return a scope in which training keeps what techniques did, and no graph stays.

    Args:
        context: knows how the work of a technique is kept.
        steps: the techniques.
        model: the model that they were applied to.
        trainer: what `fit` is called on.
    """
    with ExitStack() as scopes:
        # The model may be one of many that are tried and dropped.
        scopes.callback(current().release_graphs)
        for step in steps:
            scopes.enter_context(context.preserve(step, model, trainer))
        yield


def fine_tune(model: Model, step: Technique, context: Context) -> None:
    """Train a model in place after a step."""
    with preserving(context, [*context.earlier, step], model, model):
        stage(TRAINING)
        with without_preprocessor([model]):
            model.fit(**context.fit, epochs=context.epochs)


class _Constraints:
    """A variable's own constraint, or None, with others behind it."""

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
    """Constrain a variable after its own constraint; return the undo, for any order.

    The optimizer applies constraints in the same step as the update.

    Args:
        variable: a `keras.Variable`.
        constraint: takes and returns a value of it, a tensor of its shape.
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
