"""The steps of a compression, one after the other, with training between."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.seeding import seeded
from kerasmem.compression import batch_norm
from kerasmem.compression.checkpoints import Checkpoints
from kerasmem.compression.technique import Technique, TrainingStep
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange


@dataclass(frozen=True)
class Training:
    """How a model is trained between steps.

    Args:
        data: samples in any form that `kerasmem.files.data` lists.
        fit: arguments for `fit`, all but the epochs.
        epochs: of training after each step that allows it.
        seed: of everything that is drawn; None leaves chance alone.
    """

    data: Any
    fit: dict[str, Any]
    epochs: int
    seed: int | None

    def seeded(self, place: int) -> Any:
        """Return a scope whose random numbers the seed and a place decide."""
        if self.seed is None:
            return seeded(None)
        derived = np.random.SeedSequence([self.seed, place]).generate_state(1)
        return seeded(int(derived[0]))


def run_steps(
    original: Any,
    steps: Sequence[Technique],
    training: Training,
    checkpoints: Checkpoints | None = None,
) -> tuple[Any, list[WeightChange]]:
    """Return a copy of `original` after all steps, and what became of its weights.

    Args:
        original: the model, compiled if there is training.
        steps: the techniques.
        training: between the steps.
        checkpoints: where each step is kept, and which are done already.
    """
    stages = [step.stages() for step in steps]
    begun = checkpoints.done() if checkpoints else None
    model, changes, done = original, [], begun or 0
    if begun is None:
        model = clone(original)
        if checkpoints:
            checkpoints.write(0, model, [])
    if checkpoints:
        model, changes = _from_file(checkpoints, done, original, training)
    for number, parts in enumerate(stages[done:], start=done + 1):
        earlier = [part for stage in stages[: number - 1] for part in stage]
        with training.seeded(2 * number):
            compile_as(model, original)
            made: list[WeightChange] = []
            for place, part in enumerate(parts):
                before = [*earlier, *parts[:place]]
                model, found = _run(part, before, model, training)
                made += found
            changes += made
            if _leaves_stale(steps[number - 1 :], made, training):
                loss = _loss(model, original)
                size = training.fit.get("batch_size") or batch_norm.BATCH_SIZE
                changes += batch_norm.reestimate_if_better(
                    model, training.data, loss, size
                )
        if checkpoints:
            checkpoints.write(number, model, changes)
            model, changes = _from_file(checkpoints, number, original, training)
    return model, changes


def _from_file(
    checkpoints: Checkpoints, step: int, original: Any, training: Training
) -> tuple[Any, list[WeightChange]]:
    # The same draws, whether this run wrote the file or another one.
    with training.seeded(2 * step + 1):
        return checkpoints.read(step, original)


def _run(
    step: Technique, before: list[Technique], model: Any, training: Training
) -> tuple[Any, list[WeightChange]]:
    """Return the model after one step that is done at once, and its account."""
    if isinstance(step, TrainingStep):
        kept = partial(_kept, before, model)
        step.train(model, training.data, kept, **training.fit)
        return model, []
    model, changes = step.applied(model, training.data)
    if training.epochs and step.trains_on:
        with _kept([*before, step], model, model):
            model.fit(**training.fit, epochs=training.epochs)
    return model, changes


def _leaves_stale(
    steps: Sequence[Technique], changes: list[WeightChange], training: Training
) -> bool:
    """Return whether the first of `steps` left statistics behind, and there is data.

    A step removes or moves weights if training suits it, or if it is training.
    """
    step, following = steps[0], steps[1:2]
    trains = isinstance(step, TrainingStep) or (step.trains_on and training.epochs > 0)
    removed = step.trains_on and any(change.changed for change in changes)
    by_hand = any(other.name == batch_norm.NAME for other in following)
    return training.data is not None and (trains or removed) and not by_hand


def _loss(model: Any, original: Any) -> batch_norm.Loss:
    """Return the loss of a model, without labels its distance from the original."""

    def loss(x: Any, y: Any, weight: Any) -> float:
        with current().inference():
            outputs = model(x, training=False)
            if y is not None and model.compiled and model.loss is not None:
                return batch_norm.own_loss(model, (x, y, weight), outputs)
            pairs = zip(
                keras.tree.flatten(outputs),
                keras.tree.flatten(original(x, training=False)),
                strict=True,
            )
            return sum(
                float(np.square(to_numpy(a).astype("f8") - to_numpy(b)).mean())
                for a, b in pairs
            )

    return loss


@contextmanager
def _kept(steps: Sequence[Technique], model: Any, trainer: Any) -> Iterator[None]:
    """Keep what `steps` did to `model` while `trainer` trains it."""
    with ExitStack() as scopes:
        for step in steps:
            scopes.enter_context(step.preserved(model, trainer))
        yield
