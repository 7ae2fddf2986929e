"""Search strategy: finds the best compression within a target or a maximum drop.

For each family of techniques, the search first finds the lowest strength that meets the
target, without training. It then trains the families with the smallest drop. If no
result is acceptable, or without a target, it increases the strength of every family up
to the maximum drop. Only the best families are then trained.
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
    """A family, its strength, and the maximum strength that can be applied."""

    family: str
    strength: float = 0.0
    most: float = 1.0


Branch = Callable[[Trials, Setting], Any]
"""Sequence of trials of one family."""

Spread = Callable[[Trials, Branch, Sequence[Setting]], list[Any]]
"""Runs a branch for every setting and returns the results in order."""


def in_turn(trials: Trials, branch: Branch, settings: Sequence[Setting]) -> list[Any]:
    """Returns the results of a branch for all settings, in this process."""
    return [branch(trials, setting) for setting in settings]


_STRENGTHS = (1.0, 0.75, 0.5, 0.25)
"""Starting strengths, because full strength can leave too little of a model."""
_HALVINGS, _TRAINED_HALVINGS = 5, 3
_PROMISING = 3
"""Number of families to train."""
_ATTEMPTS = 3
"""Maximum number of trainings per family if training makes the file larger."""

OUT_OF_TIME = "time ran out"

_Ranked = tuple[float, Setting]
"""Rank and setting; lower ranks are trained first."""


def search(
    task: SearchTask, spread: Spread = in_turn
) -> tuple[Candidate, SearchReport]:
    """Runs the search and returns the best candidate and a report.

    Families do not depend on each other, so `spread` can run them in other processes.

    Raises:
        InputError: If a cost of the model cannot be computed.
    """
    trials = Trials(task)
    every = [Setting(name) for name in trials.families]
    reason = "all planned trials were run"
    try:
        if task.target.limits and not trials.is_done:
            # Find the lowest strengths that meet the target; train the smallest drops.
            fitting = spread(trials, _just_fitting, every)
            spread(trials, _train_to_fit, _promising(trials, fitting))
        if not trials.is_done:
            # Find the highest strengths within the drop; train the smallest models.
            furthest = spread(trials, _furthest_untrained, every)
            spread(trials, _furthest_trained, _promising(trials, furthest))
    except TimeIsUpError:
        reason = OUT_OF_TIME
    return trials.findings.best, _report(trials, reason)


def _just_fitting(trials: Trials, setting: Setting) -> _Ranked | None:
    family = trials.families[setting.family]
    most = _most(trials, family)
    if most is None or trials.cost_share(family, most) > 1:
        return None
    strength = _weakest(trials, family, most, 1.0)
    if len(family.at(strength)) < len(family.parts):
        return None  # another family covers the remaining techniques
    trial = trials.judge(family, strength)
    return trial and (trial.worst_drop, Setting(family.name, strength, most))


def _train_to_fit(trials: Trials, setting: Setting) -> None:
    family, strength = trials.families[setting.family], setting.strength
    for _ in range(_ATTEMPTS):
        trial = trials.judge(family, strength, trained=True)
        if trial is None or trial.over <= 1:
            return
        # Entropy coding can be less effective on trained weights.
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
        # Some techniques cannot be applied at low strength, which is no drop.
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
