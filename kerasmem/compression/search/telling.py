"""A search in words: each trial as it ends, and why nothing was found."""

import math

from rich.console import Console

from kerasmem.compression.search.target import cost_text
from kerasmem.records import SearchReport, SearchTrial


def tell(trial: SearchTrial) -> None:
    """Write a line about a trial to stderr."""
    console = Console(stderr=True, highlight=False)
    console.print(f"tried {trial_text(trial)}", markup=False, soft_wrap=True)


def trial_text(trial: SearchTrial) -> str:
    """Return a trial in one line."""
    costs = ", ".join(cost_text(name, value) for name, value in trial.costs.items())
    trained = "trained" if trial.epochs else "not trained"
    return (
        f"{trial.name} ({trained}): {costs}, drop {trial.drop:+.4f} "
        f"± {trial.drop_error:.4f}"
    )


def out_of_reach(report: SearchReport) -> str:
    """Return what is reachable instead of the target."""
    limits = ", ".join(cost_text(name, limit) for name, limit in report.target.items())
    within = "" if report.max_drop is None else f" with max_drop={report.max_drop:g}"
    met = [trial for trial in report.trials if trial.over <= 1]
    if met:
        least = min(met, key=lambda trial: trial.worst_drop)
        other = f"Within the target: {trial_text(least)}."
    else:
        least = min(report.trials, key=lambda trial: trial.over)
        other = f"Smallest of all: {trial_text(least)}."
    return (
        f"Nothing that was tried meets the target ({limits}){within}. Nearest{within}: "
        f"{trial_text(report.trials[report.chosen])}. {other} Trials: "
        f"{len(report.trials)}; {report.stopped}. Next: ask for less, or give more "
        "time, samples or epochs of fine-tuning. The nearest is in the error's "
        "`result`."
    )


def dropped(report: SearchReport, samples: int, lost: float) -> str:
    """Return that the result drops more on samples that no trial saw."""
    chosen = report.trials[report.chosen]
    return (
        f"On the {samples or ''} samples of validation_data {report.metric} got worse "
        f"by {lost:.4f}, which is more than max_drop={report.max_drop} allows. On the "
        f"{report.samples} samples of data that judged the search it was "
        f"{chosen.drop:.4f} ± {chosen.drop_error:.4f}. Next: a larger max_drop, or "
        "more samples. The model is in the error's `result`."
    )


def nothing_smaller(report: SearchReport) -> str:
    """Return that the model is as it was, and how much a drop can be told."""
    finest = min((t.drop_error for t in report.trials[1:]), default=math.nan)
    return (
        "Nothing smaller that was tried keeps surely within "
        f"max_drop={report.max_drop:g}, so the model is as it was ({report.stopped}). "
        f"The samples tell a drop to {finest:.4f} at best. Next: more samples, or "
        "a larger max_drop."
    )
