"""The compression that meets a target, or is the smallest, and still does its job.

For each family of techniques the weakest strength is looked for that meets the target;
that takes no training, and tells how much each of them hurts. Those that hurt least are
trained. If none of them does its job then, or if there is no target, every family is
taken as far as the drop allows, first without training, then the most promising with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kerasmem.compression.judge import first_metric
from kerasmem.compression.search.target import TechniqueFamily
from kerasmem.compression.search.trials import (
    Candidate,
    SearchTask,
    TimeIsUpError,
    Trials,
)
from kerasmem.records import SearchReport
from kerasmem.stats.bisection import bisect
from kerasmem.stats.pareto import front


@dataclass(frozen=True)
class Setting:
    """A family, and how far it is taken.

    Args:
        family: its name.
        strength: how much of it.
        most: the most of it that can be applied.
    """

    family: str
    strength: float = 0.0
    most: float = 1.0


Branch = Callable[[Trials, Setting], Any]
"""Some trials of one family, each of which may depend on those before it."""

Spread = Callable[[Trials, Branch, Sequence[Setting]], list[Any]]
"""Runs a branch for every setting, and returns what they return, in that order."""


def in_turn(trials: Trials, branch: Branch, settings: Sequence[Setting]) -> list[Any]:
    """Return what a branch returns for every setting, in this process."""
    return [branch(trials, setting) for setting in settings]


_STRENGTHS = (1.0, 0.75, 0.5, 0.25)
"""At full strength there may be too little left of a model to be one."""
_HALVINGS, _TRAINED_HALVINGS = 5, 3
_PROMISING = 3
"""So many families are trained."""
_ATTEMPTS = 3
"""So often, if training makes a file larger than it was before."""

_Ranked = tuple[float, Setting]
"""The lower the number, the more it promises to train the setting."""


def search(
    task: SearchTask, spread: Spread = in_turn
) -> tuple[Candidate, SearchReport]:
    """Return the compression that was found, or the nearest to it, and all trials.

    What is done to one family depends on no other family, so it may be done anywhere.

    Args:
        task: what is searched for.
        spread: does one thing to several families, and returns what comes of each.

    Raises:
        InputError: if a cost of the model cannot be told.
    """
    trials = Trials(task)
    every = [Setting(name) for name in trials.families]
    reason = "all that was planned was tried"
    try:
        if task.target.limits and not trials.is_done:
            # Judge what just meets the target, and train what loses least.
            fitting = spread(trials, _just_fitting, every)
            spread(trials, _train_to_fit, _promising(trials, fitting))
        if not trials.is_done:
            # Take every family as far as the drop allows; train those furthest.
            furthest = spread(trials, _furthest_untrained, every)
            spread(trials, _furthest_trained, _promising(trials, furthest))
    except TimeIsUpError:
        reason = "the time was up"
    return trials.findings.best, _report(trials, reason)


def _just_fitting(trials: Trials, setting: Setting) -> _Ranked | None:
    family = trials.families[setting.family]
    most = _most(trials, family)
    if most is None or trials.cost_share(family, most) > 1:
        return None
    strength = _weakest(trials, family, most, 1.0)
    if len(family.at(strength)) < len(family.parts):
        return None  # what is left of it is a family of its own
    trial = trials.judge(family, strength)
    return trial and (trial.worst_drop, Setting(family.name, strength, most))


def _train_to_fit(trials: Trials, setting: Setting) -> None:
    family, strength = trials.families[setting.family], setting.strength
    for _ in range(_ATTEMPTS):
        trial = trials.judge(family, strength, trained=True)
        if trial is None or trial.over <= 1:
            return
        # Trained weights may be harder to code than those before.
        limit = trials.cost_share(family, strength) / trial.over
        if trials.cost_share(family, setting.most) > limit:
            return
        strength = _weakest(trials, family, setting.most, limit)


def _furthest_untrained(trials: Trials, setting: Setting) -> _Ranked | None:
    family = trials.families[setting.family]
    most = _most(trials, family)
    if most is None:
        return None
    weakest = Setting(family.name, 0.0, most)
    strength = _furthest(trials, weakest, trained=False)
    return trials.cost_share(family, strength), replace(weakest, strength=strength)


def _furthest_trained(trials: Trials, setting: Setting) -> None:
    _furthest(trials, setting, trained=True)


def _most(trials: Trials, family: TechniqueFamily) -> float | None:
    for strength in _STRENGTHS if family.has_strength else _STRENGTHS[:1]:
        if trials.cost_share(family, strength) < float("inf"):
            return strength
    trials.findings.left_out[family.name] = trials.findings.reasons[family.name]
    return None


def _weakest(
    trials: Trials, family: TechniqueFamily, most: float, limit: float
) -> float:

    def fits(strength: float) -> bool:
        return trials.cost_share(family, strength) <= limit

    if not family.has_strength:
        return most
    return 0.0 if fits(0.0) else bisect(fits, most, 0.0, _HALVINGS)


def _furthest(trials: Trials, setting: Setting, *, trained: bool) -> float:
    family = trials.families[setting.family]

    def keeps(strength: float) -> bool:
        trial = trials.judge(family, strength, trained=trained)
        # A little of some techniques cannot be applied, and does no harm.
        return trial is None or trials.task.keeps(trial)

    if keeps(setting.most):
        return setting.most
    if not family.has_strength:
        return setting.strength
    halvings = _TRAINED_HALVINGS if trained else _HALVINGS
    return bisect(keeps, setting.strength, setting.most, halvings)


def _promising(trials: Trials, pairs: Sequence[_Ranked | None]) -> list[Setting]:
    by_drop = sorted((pair for pair in pairs if pair), key=lambda pair: pair[0])
    settings = [setting for _, setting in by_drop]
    return [c for c in settings if trials.families[c.family].trains][:_PROMISING]


def _report(trials: Trials, stopped: str) -> SearchReport:
    task, findings = trials.task, trials.findings
    all_trials = list(findings.tried.values())
    on_front = front([(trial.over, trial.worst_drop) for trial in all_trials])
    return SearchReport(
        target=task.target.limits,
        max_drop=task.max_drop,
        metric=first_metric(findings.before[0]),
        samples=task.held.samples,
        trials=tuple(
            replace(trial, on_front=is_on)
            for trial, is_on in zip(all_trials, on_front, strict=True)
        ),
        chosen=all_trials.index(findings.best.trial),
        left_out=findings.left_out,
        stopped=stopped,
    )
