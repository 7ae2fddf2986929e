"""What techniques do with a context: copy a model, seed, train what is preserved."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from kerasmem.backends.seeding import seeded
from kerasmem.compression.stages import TRAINING, stage
from kerasmem.compression.technique import Context, Technique
from kerasmem.graph.clone import clone


def working_copy(model: Any, context: Context) -> Any:
    """Return a model to change in place: a copy, unless the context owns this one."""
    return model if context.owned else clone(model)


def seeded_at(context: Context, place: int) -> Any:
    """Return a scope whose random numbers the seed and a place in a chain decide."""
    if context.seed is None:
        return seeded(None)
    derived = np.random.SeedSequence([context.seed, place]).generate_state(1)
    return seeded(int(derived[0]))


@contextmanager
def preserving(steps: Sequence[Technique], model: Any, trainer: Any) -> Iterator[None]:
    """Return a scope in which training keeps what techniques did.

    Args:
        steps: the techniques.
        model: the model that they were applied to.
        trainer: what `fit` is called on.
    """
    with ExitStack() as scopes:
        for step in steps:
            scopes.enter_context(step.preserved(model, trainer))
        yield


def fine_tune(model: Any, step: Technique, context: Context) -> None:
    """Train a model in place after a step, if the context and the step ask for it."""
    if context.epochs and step.trains_on:
        with preserving([*context.earlier, step], model, model):
            stage(TRAINING)
            model.fit(**context.fit, epochs=context.epochs)
