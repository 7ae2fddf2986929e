"""Trials of a search: compressed models with costs, drops and the best candidate."""

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
    """Reports nothing."""
    del trial


@dataclass(frozen=True)
class SearchTask:
    """Inputs of a search.

    Args:
        original: The compiled model.
        target: Limits on the costs.
        max_drop: Maximum allowed drop of the first metric, or `None`.
        context: Data and settings for fine-tuning.
        held: Held-out samples for evaluation.
        final_samples: Number of validation samples, or `None`.
        coding: Coding of the file.
        until: `time.monotonic()` deadline of the trials.
        tell: Function that reports a trial.
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
        """Returns whether the drop of a trial is within `max_drop` with certainty."""
        most = self.max_drop
        return math.isfinite(trial.worst_drop) and (
            most is None or trial.worst_drop <= most
        )

    def rank(self, trial: SearchTrial) -> tuple[float, float, float]:
        """Returns a sort key; the best trial has the lowest.

        Trials that meet the target within `max_drop` come first, by drop. Other trials
        within `max_drop` follow, by cost.
        """
        if self.keeps(trial):
            if self.target.limits and trial.over <= 1:
                return 0, trial.worst_drop, trial.over
            return 1, trial.over, trial.worst_drop
        return 2, trial.worst_drop, trial.over


@dataclass(frozen=True)
class Candidate:
    """A trial with its techniques, its model and the changes of all weights."""

    trial: SearchTrial
    steps: tuple[Technique, ...]
    model: Any
    changes: list[WeightChange]


Steps = tuple[Technique, ...]


@dataclass
class Findings:
    """Results of all trials. The first trial is the unchanged model.

    Args:
        before: Metrics of the unchanged model per part.
        limits: Limits that costs are divided by.
        best: The best candidate. Its model is `None` if it is in another process.
        tried: Trials by techniques and whether they were trained.
        cost_shares: Ratio of cost to limit by techniques, infinite if inapplicable.
        reasons: Latest reason why a family was inapplicable, by name.
        left_out: Reasons why families were left out, by name.
    """

    before: Sequence[Metrics]
    limits: Target
    best: Candidate
    tried: dict[tuple[Steps, bool], SearchTrial] = field(default_factory=dict)
    cost_shares: dict[Steps, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def without_model(self) -> "Findings":
        """Returns a copy without the model, for another process."""
        return replace(
            self,
            best=replace(self.best, model=None, changes=[]),
            tried=dict(self.tried),
            cost_shares=dict(self.cost_shares),
            reasons=dict(self.reasons),
            left_out=dict(self.left_out),
        )

    def add(self, other: "Findings") -> list[SearchTrial]:
        """Merges the findings of another process and returns the new trials.

        Existing entries are kept, so the result depends only on the merge order. The
        best candidate is not merged.
        """
        new = {key: t for key, t in other.tried.items() if key not in self.tried}
        self.tried |= new
        self.cost_shares = other.cost_shares | self.cost_shares
        self.reasons |= other.reasons
        self.left_out |= other.left_out
        return list(new.values())


class TimeIsUpError(Exception):
    """Raised within a search when the time budget is used up."""


class Trials:
    """Runs compression trials on one model and caches the results.

    Random draws depend only on the seed, so a trial gives the same result in every
    process and order. Without `findings`, the first trial is the unchanged model.
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
        """Whether a trial meets the target within `max_drop`."""
        return self.task.rank(self.findings.best.trial)[0] == 0

    def cost_share(self, family: TechniqueFamily, strength: float) -> float:
        """Returns the ratio of cost to limit, infinite for inapplicable techniques.

        The model is not trained or evaluated. `findings.reasons` contains the reason if
        the techniques are inapplicable.
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
        """Returns the trial of a family, `None` if the techniques are inapplicable."""
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
        """Merges the findings of another process."""
        for trial in self.findings.add(findings):
            self.task.tell(trial)
        if self._is_better(findings.best):
            model = findings.best.model.unpacked()
            self.findings.best = replace(findings.best, model=model)

    @property
    def time_is_up(self) -> bool:
        """Whether the time budget is used up."""
        return time.monotonic() >= self.task.until

    def check_time(self) -> None:
        """Raises `TimeIsUpError` if the time budget is used up."""
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
        # Added last, because it raises in `on_train_end` and other callbacks must end.
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
        # Steps use positions from 1 for their seeds, so 0 is free.
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
    """Stops training when the time budget is used up."""

    def __init__(self, trials: Trials) -> None:
        super().__init__()
        self._trials = trials

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002
        """Stops training when the time budget is used up."""
        if self._trials.time_is_up:
            self.model.stop_training = True

    def on_train_end(self, logs: Logs = None) -> None:  # noqa: ARG002
        """Raises `TimeIsUpError` if the time budget is used up."""
        self._trials.check_time()


def _check_finite(parts: Sequence[Metrics]) -> None:
    name = first_metric(parts[0])
    wrong = [part[name] for part in parts if not math.isfinite(part[name])]
    if wrong:
        raise DataError(
            f"The {name} of the original model is {wrong[0]} on data, so trials cannot "
            "be compared with it. Next: check samples and weights for NaN or infinity."
        )
