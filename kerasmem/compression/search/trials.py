"""Compressions that are made, weighed and judged, and the best of them so far."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from kerasmem.compression.chain import run_steps
from kerasmem.compression.judge import first_metric
from kerasmem.compression.search.significance import (
    HeldOut,
    Metrics,
    drop,
    metrics_by_part,
)
from kerasmem.compression.search.target import Target, TechniqueFamily, costs, families
from kerasmem.compression.technique import Context, Technique
from kerasmem.compression.working import seeded_at
from kerasmem.errors import DataError, InputError
from kerasmem.files.save import Coding
from kerasmem.records import SearchTrial, WeightChange
from kerasmem.types import Logs, Model


def silent(trial: SearchTrial) -> None:
    """Tell nothing."""
    del trial


@dataclass(frozen=True)
class SearchTask:
    """What is searched for, and with what.

    Args:
        original: the model, compiled.
        target: what it may cost.
        max_drop: most that the first metric may get worse; None for any.
        context: how a trial is fine-tuned.
        held: judges the trials.
        final_samples: number of samples that judge the result; None if unknown.
        coding: of the file.
        until: `time.monotonic()` at which nothing more is tried.
        tell: told of each trial.
    """

    original: Any
    target: Target
    max_drop: float | None
    context: Context
    held: HeldOut
    final_samples: int | None = None
    coding: Coding = "deflate"
    until: float = math.inf
    tell: Callable[[SearchTrial], None] = silent

    def keeps(self, trial: SearchTrial) -> bool:
        """Return whether a trial surely does its job."""
        most = self.max_drop
        return math.isfinite(trial.worst_drop) and (
            most is None or trial.worst_drop <= most
        )

    def rank(self, trial: SearchTrial) -> tuple[float, float, float]:
        """Return what the best trial has the least of.

        Of those that meet the target and do their job, the one that drops least; else
        of those that do their job, the smallest.
        """
        if self.keeps(trial):
            if self.target.limits and trial.over <= 1:
                return 0, trial.worst_drop, trial.over
            return 1, trial.over, trial.worst_drop
        return 2, trial.worst_drop, trial.over


@dataclass(frozen=True)
class Candidate:
    """A trial with its model.

    Args:
        trial: what it costs and loses.
        steps: its techniques.
        model: the model.
        changes: the account of its weights.
    """

    trial: SearchTrial
    steps: tuple[Technique, ...]
    model: Any
    changes: list[WeightChange]


Steps = tuple[Technique, ...]


@dataclass
class Findings:
    """All that was looked at; the first trial is the model unchanged.

    Args:
        before: metrics of the model unchanged, part by part.
        limits: what a cost is a share of.
        best: the best trial; its model is None if that lies in another process.
        tried: what was judged, by its techniques and whether it was trained.
        cost_shares: cost as a share of the limits by techniques, infinite if they
            cannot be applied.
        reasons: why a family could not be applied the last time, by its name.
        left_out: why a family is not tried at all, by its name.
    """

    before: Sequence[Metrics]
    limits: Target
    best: Candidate
    tried: dict[tuple[Steps, bool], SearchTrial] = field(default_factory=dict)
    cost_shares: dict[Steps, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def without_model(self) -> "Findings":
        """Return a copy that another process can go on from."""
        return replace(
            self,
            best=replace(self.best, model=None, changes=[]),
            tried=dict(self.tried),
            cost_shares=dict(self.cost_shares),
            reasons=dict(self.reasons),
            left_out=dict(self.left_out),
        )

    def add(self, other: "Findings") -> list[SearchTrial]:
        """Take over all but the best from one that went on, and return its new trials.

        What was known already stays: so the order in which others are added decides,
        not who was first.
        """
        new = {key: t for key, t in other.tried.items() if key not in self.tried}
        self.tried |= new
        self.cost_shares = other.cost_shares | self.cost_shares
        self.reasons |= other.reasons
        self.left_out |= other.left_out
        return list(new.values())


class TimeIsUpError(Exception):
    """The time budget is spent; never leaves the search."""


class Trials:
    """Compressions of one model, each made once.

    What is drawn in a trial depends on the seed only, not on the trials before it: so
    it is the same in whatever process it is made.

    Args:
        task: what is searched for.
        findings: what is known already; None to begin with the model unchanged.
    """

    def __init__(self, task: SearchTask, findings: Findings | None = None) -> None:
        self.task = task
        self.families = {f.name: f for f in families(task.target.costs)}
        self._look = replace(task.context, data=None, epochs=0)
        self.findings = findings or self._unchanged()
        if findings is None:
            self._note(self.findings.best)

    @property
    def is_done(self) -> bool:
        """Whether there is one that meets the target and does its job."""
        return self.task.rank(self.findings.best.trial)[0] == 0

    def cost_share(self, family: TechniqueFamily, strength: float) -> float:
        """Return what a compression costs as a share of the target, infinite if none.

        Nothing is trained or judged. If it cannot be made, `findings.reasons` has why.
        """
        steps, findings = family.at(strength), self.findings
        if steps not in findings.cost_shares:
            self.check_time()
            try:
                model, _ = self._compressed(steps, self._look)
                findings.cost_shares[steps] = findings.limits.over(
                    self._costs(model, steps)
                )
            except InputError as error:
                findings.reasons[family.name] = str(error)
                findings.cost_shares[steps] = math.inf
        return findings.cost_shares[steps]

    def judge(
        self, family: TechniqueFamily, strength: float, *, trained: bool = False
    ) -> SearchTrial | None:
        """Return what a compression costs and loses, None if it cannot be made.

        Args:
            family: the techniques.
            strength: how much of them.
            trained: whether the model is fine-tuned.
        """
        steps = family.at(strength)
        trained = trained and family.trains and self.task.context.epochs > 0
        if (steps, trained) not in self.findings.tried:
            self.check_time()
            try:
                self._note(self._candidate(family.name, steps, trained=trained))
            except InputError as error:
                self.findings.reasons[family.name] = str(error)
                return None
        return self.findings.tried[steps, trained]

    def add(self, findings: Findings) -> None:
        """Take over what another process has found from what was known here."""
        for trial in self.findings.add(findings):
            self.task.tell(trial)
        if self._is_better(findings.best):
            model = findings.best.model.unpacked()
            self.findings.best = replace(findings.best, model=model)

    @property
    def time_is_up(self) -> bool:
        """Whether the time budget is spent."""
        return time.monotonic() >= self.task.until

    def check_time(self) -> None:
        """Raise `TimeIsUpError` if it is."""
        if self.time_is_up:
            raise TimeIsUpError

    def _unchanged(self) -> Findings:
        task = self.task
        model, changes = self._compressed((), self._look)
        before = metrics_by_part(model, task.held)
        _check_finite(before)
        model_costs = self._costs(model, ())
        limits = task.target if task.target.limits else Target(model_costs)
        trial = SearchTrial(
            "unchanged", (), 0, model_costs, limits.over(model_costs), 0.0, 0.0
        )
        return Findings(before, limits, Candidate(trial, (), model, changes))

    def _candidate(
        self, name: str, steps: tuple[Technique, ...], *, trained: bool
    ) -> Candidate:
        begin = time.monotonic()
        context = self.task.context
        # The last one: those before it have ended by then.
        fit = {"callbacks": [*context.fit["callbacks"], _UntilTimeIsUp(self)]}
        epochs = context.epochs if trained else 0
        context = replace(context, fit={**context.fit, **fit}, epochs=epochs)
        model, changes = self._compressed(steps, context)
        model_costs = self._costs(model, steps)
        held_out = self.task.held
        after = metrics_by_part(model, held_out)
        metric_drop = drop(
            self.findings.before, after, held_out.samples, self.task.final_samples
        )
        trial = SearchTrial(
            name=name,
            steps=tuple(step.to_json() for step in steps),
            epochs=epochs,
            costs=model_costs,
            over=self.findings.limits.over(model_costs),
            drop=metric_drop.mean,
            drop_error=metric_drop.error,
            seconds=time.monotonic() - begin,
        )
        return Candidate(trial, steps, model, changes)

    def _compressed(
        self, steps: tuple[Technique, ...], context: Context
    ) -> tuple[Any, list[WeightChange]]:
        # The place of no step: `run_steps` draws anew at each of its own.
        with seeded_at(context, 0):
            return run_steps(self.task.original, steps, context)

    def _costs(self, model: Model, steps: tuple[Technique, ...]) -> dict[str, float]:
        names, task = self.task.target.costs, self.task
        floats = tuple(step for step in steps if not step.freezes)
        as_floats = model
        if "flops" in names and floats != steps:
            as_floats, _ = self._compressed(floats, self._look)
        batch = task.held.data, task.context.fit["batch_size"]
        return costs(names, model, as_floats, task.coding, batch)

    def _note(self, candidate: Candidate) -> None:
        self.findings.tried[candidate.steps, candidate.trial.epochs > 0] = (
            candidate.trial
        )
        if self._is_better(candidate):
            self.findings.best = candidate
        self.task.tell(candidate.trial)

    def _is_better(self, candidate: Candidate) -> bool:
        return self.task.rank(candidate.trial) < self.task.rank(
            self.findings.best.trial
        )


class _UntilTimeIsUp(keras.callbacks.Callback):
    """Breaks a training off when the time is up."""

    def __init__(self, trials: Trials) -> None:
        super().__init__()
        self._trials = trials

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002
        """Look at the clock."""
        if self._trials.time_is_up:
            self.model.stop_training = True

    def on_train_end(self, logs: Logs = None) -> None:  # noqa: ARG002
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
