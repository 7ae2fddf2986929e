"""Compressions that are made, weighed and judged, and the best of them so far."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from kerasmem.compression.judge import first_metric
from kerasmem.compression.search.costs import costs
from kerasmem.compression.search.families import Family, families
from kerasmem.compression.search.found import Found
from kerasmem.compression.search.judging import Metrics, drop, metrics_by_part
from kerasmem.compression.search.target import Target
from kerasmem.compression.search.task import Made, Task
from kerasmem.compression.stages import Training, run_steps
from kerasmem.compression.technique import Technique
from kerasmem.errors import DataError, InputError
from kerasmem.graph.clone import compile_as
from kerasmem.records import SearchTrial, WeightChange


class TimeIsUpError(Exception):
    """The time budget is spent; never leaves the search."""


class Trials:
    """Compressions of one model, each made once.

    What is drawn in a trial depends on the seed only, not on the trials before it: so
    it is the same in whatever process it is made.

    Args:
        task: what is searched for.
        found: what is known already; None to begin with the model unchanged.
    """

    def __init__(self, task: Task, found: Found | None = None) -> None:
        self.task = task
        self.families = {f.name: f for f in families(task.target.costs)}
        self._look = replace(task.training, data=None, epochs=0)
        self.found = found or self._unchanged()
        if found is None:
            self._note(self.found.best)

    @property
    def is_done(self) -> bool:
        """Whether there is one that meets the target and does its job."""
        return self.task.rank(self.found.best.trial)[0] == 0

    def weight(self, family: Family, strength: float) -> float:
        """Return what a compression costs as a share of the target, infinite if none.

        Nothing is trained or judged. If it cannot be made, `found.reasons` has why.
        """
        steps, found = family.at(strength), self.found
        if steps not in found.weighed:
            self.check_time()
            try:
                model, _ = self._made(steps, self._look)
                found.weighed[steps] = found.limits.over(self._costs(model, steps))
            except InputError as error:
                found.reasons[family.name] = str(error)
                found.weighed[steps] = math.inf
        return found.weighed[steps]

    def judged(
        self, family: Family, strength: float, *, trained: bool = False
    ) -> SearchTrial | None:
        """Return what a compression costs and loses, None if it cannot be made.

        Args:
            family: the techniques.
            strength: how much of them.
            trained: whether the model is fine-tuned.
        """
        steps = family.at(strength)
        trained = trained and family.trains and self.task.training.epochs > 0
        if (steps, trained) not in self.found.tried:
            self.check_time()
            try:
                self._note(self._judged(family.name, steps, trained=trained))
            except InputError as error:
                self.found.reasons[family.name] = str(error)
                return None
        return self.found.tried[steps, trained]

    def add(self, found: Found) -> None:
        """Take over what another process has found from what was known here."""
        for trial in self.found.add(found):
            self.task.tell(trial)
        if self._is_better(found.best):
            model = found.best.model.unpacked()
            self.found.best = replace(found.best, model=model)

    @property
    def time_is_up(self) -> bool:
        """Whether the time budget is spent."""
        return time.monotonic() >= self.task.until

    def check_time(self) -> None:
        """Raise `TimeIsUpError` if it is."""
        if self.time_is_up:
            raise TimeIsUpError

    def _unchanged(self) -> Found:
        task = self.task
        model, changes = self._made((), self._look)
        before = metrics_by_part(model, task.held)
        _check_finite(before)
        found = self._costs(model, ())
        limits = task.target if task.target.limits else Target(found)
        trial = SearchTrial("unchanged", (), 0, found, limits.over(found), 0.0, 0.0)
        return Found(before, limits, Made(trial, (), model, changes))

    def _judged(
        self, name: str, steps: tuple[Technique, ...], *, trained: bool
    ) -> Made:
        begin = time.monotonic()
        training = self.task.training
        # The last one: those before it have ended by then.
        fit = {"callbacks": [*training.fit["callbacks"], _UntilTimeIsUp(self)]}
        epochs = training.epochs if trained else 0
        training = replace(training, fit=training.fit | fit, epochs=epochs)
        model, changes = self._made(steps, training)
        found = self._costs(model, steps)
        held = self.task.held
        after = metrics_by_part(model, held)
        lost = drop(self.found.before, after, held.samples, self.task.final_samples)
        trial = SearchTrial(
            name=name,
            steps=tuple(step.to_json() for step in steps),
            epochs=epochs,
            costs=found,
            over=self.found.limits.over(found),
            drop=lost.mean,
            drop_error=lost.error,
            seconds=time.monotonic() - begin,
        )
        return Made(trial, steps, model, changes)

    def _made(
        self, steps: tuple[Technique, ...], training: Training
    ) -> tuple[Any, list[WeightChange]]:
        # The place of no step: `run_steps` draws anew at each of its own.
        with training.seeded(0):
            model, changes = run_steps(self.task.original, steps, training)
            compile_as(model, self.task.original)
        return model, changes

    def _costs(self, model: Any, steps: tuple[Technique, ...]) -> dict[str, float]:
        names, task = self.task.target.costs, self.task
        floats = tuple(step for step in steps if not step.freezes)
        as_floats = model
        if "flops" in names and floats != steps:
            as_floats, _ = self._made(floats, self._look)
        batch = task.held.data, task.training.fit["batch_size"]
        return costs(names, model, as_floats, task.coding, batch)

    def _note(self, made: Made) -> None:
        self.found.tried[made.steps, made.trial.epochs > 0] = made.trial
        if self._is_better(made):
            self.found.best = made
        self.task.tell(made.trial)

    def _is_better(self, made: Made) -> bool:
        return self.task.rank(made.trial) < self.task.rank(self.found.best.trial)


class _UntilTimeIsUp(keras.callbacks.Callback):
    """Breaks a training off when the time is up."""

    def __init__(self, trials: Trials) -> None:
        super().__init__()
        self._trials = trials

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Look at the clock."""
        if self._trials.time_is_up:
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Raise `TimeIsUpError` if it is."""
        self._trials.check_time()


def _check_finite(parts: Sequence[Metrics]) -> None:
    name = first_metric(parts[0])
    wrong = [part[name] for part in parts if not math.isfinite(part[name])]
    if wrong:
        raise DataError(
            f"The {name} of the model, before anything was done to it, is {wrong[0]} "
            "on samples of data, so nothing can be compared with it. Next: look for "
            "samples or weights that are no numbers."
        )
