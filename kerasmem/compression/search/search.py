"""The compression that meets a target, or is the smallest, and still does its job.

For each family of techniques the weakest strength is looked for that meets the target;
that takes no training, and tells how much each of them hurts. Those that hurt least are
trained. If none of them does its job then, or if there is no target, every family is
taken as far as the drop allows, first without training, then the most promising with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kerasmem.compression.judge import first_metric
from kerasmem.compression.search.bisect import bisect
from kerasmem.compression.search.families import Family
from kerasmem.compression.search.task import Made, Task
from kerasmem.compression.search.trials import TimeIsUpError, Trials
from kerasmem.memory.tune.front import front
from kerasmem.records import SearchReport

_STRENGTHS = (1.0, 0.75, 0.5, 0.25)
"""At full strength there may be too little left of a model to be one."""
_HALVINGS, _TRAINED_HALVINGS = 5, 3
_PROMISING = 3
"""So many families are trained."""
_ATTEMPTS = 3
"""So often, if training makes a file larger than it was before."""


@dataclass(frozen=True)
class _Choice:
    """A family, and how far it is taken."""

    family: Family
    strength: float
    most: float


def search(task: Task) -> tuple[Made, SearchReport]:
    """Return the compression that was found, or the nearest to it, and all trials.

    Raises:
        InputError: if a cost of the model cannot be told.
    """
    trials = Trials(task)
    stopped = "all that was planned was tried"
    try:
        if task.target.limits and not trials.is_done:
            _meet(trials)
        if not trials.is_done:
            _shrink(trials)
    except TimeIsUpError:
        stopped = "the time was up"
    return trials.best, _report(trials, stopped)


def _meet(trials: Trials) -> None:
    """Judge what just meets the target, and train what loses least."""
    found = []
    for family in trials.families:
        most = _most(trials, family)
        if most is None or trials.weight(family, most) > 1:
            continue
        strength = _weakest(trials, family, most, 1.0)
        if len(family.at(strength)) < len(family.parts):
            continue  # what is left of it is a family of its own
        if trial := trials.judged(family, strength):
            found.append((trial.worst_drop, _Choice(family, strength, most)))
    ranked = [choice for _, choice in sorted(found, key=lambda pair: pair[0])]
    for choice in _promising(ranked):
        _train_to_fit(trials, choice)


def _train_to_fit(trials: Trials, choice: _Choice) -> None:
    family, strength = choice.family, choice.strength
    for _ in range(_ATTEMPTS):
        trial = trials.judged(family, strength, trained=True)
        if trial is None or trial.over <= 1:
            return
        # Trained weights may be harder to code than those before.
        limit = trials.weight(family, strength) / trial.over
        if trials.weight(family, choice.most) > limit:
            return
        strength = _weakest(trials, family, choice.most, limit)


def _shrink(trials: Trials) -> None:
    """Take every family as far as the drop allows; train those that get furthest."""
    found = []
    for family in trials.families:
        most = _most(trials, family)
        if most is not None:
            strength = _furthest(trials, _Choice(family, 0.0, most), trained=False)
            weight = trials.weight(family, strength)
            found.append((weight, _Choice(family, strength, most)))
    ranked = [choice for _, choice in sorted(found, key=lambda pair: pair[0])]
    for choice in _promising(ranked):
        _furthest(trials, choice, trained=True)


def _most(trials: Trials, family: Family) -> float | None:
    """Return the most of a family that can be applied, None if nothing can."""
    for strength in _STRENGTHS if family.has_strength else _STRENGTHS[:1]:
        if trials.weight(family, strength) < float("inf"):
            return strength
    trials.left_out[family.name] = trials.reasons[family.name]
    return None


def _weakest(trials: Trials, family: Family, most: float, limit: float) -> float:
    """Return the least strength that costs no more than a share of the target."""

    def fits(strength: float) -> bool:
        return trials.weight(family, strength) <= limit

    if not family.has_strength:
        return most
    return 0.0 if fits(0.0) else bisect(fits, most, 0.0, _HALVINGS)


def _furthest(trials: Trials, choice: _Choice, *, trained: bool) -> float:
    """Return the strength nearest to the most with which a family does its job."""

    def keeps(strength: float) -> bool:
        trial = trials.judged(choice.family, strength, trained=trained)
        # A little of some techniques cannot be applied, and does no harm.
        return trial is None or trials.task.keeps(trial)

    if keeps(choice.most):
        return choice.most
    if not choice.family.has_strength:
        return choice.strength
    halvings = _TRAINED_HALVINGS if trained else _HALVINGS
    return bisect(keeps, choice.strength, choice.most, halvings)


def _promising(ranked: Sequence[_Choice]) -> list[_Choice]:
    return [choice for choice in ranked if choice.family.trains][:_PROMISING]


def _report(trials: Trials, stopped: str) -> SearchReport:
    task, tried = trials.task, trials.tried
    on_front = front([(trial.over, trial.worst_drop) for trial in tried])
    return SearchReport(
        target=task.target.limits,
        max_drop=task.max_drop,
        metric=first_metric(trials.before[0]),
        samples=task.held.samples,
        trials=tuple(
            replace(trial, on_front=is_on)
            for trial, is_on in zip(tried, on_front, strict=True)
        ),
        chosen=tried.index(trials.best.trial),
        left_out=trials.left_out,
        stopped=stopped,
    )
