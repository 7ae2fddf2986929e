"""What a caller wants of a search, and what they are told in the end."""

import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import keras
from rich.console import Console

from kerasmem.backends import current
from kerasmem.checks import Real
from kerasmem.compression.chain import Outcome
from kerasmem.compression.judge import check_metric, drop_of
from kerasmem.compression.measure import ACTIVATIONS, LATENCY, METRICS
from kerasmem.compression.search.parallel import (
    ParallelTrials,
    SharedSetup,
    check_parallel,
    executing,
)
from kerasmem.compression.search.significance import split
from kerasmem.compression.search.strategy import search
from kerasmem.compression.search.target import Target, cost_text
from kerasmem.compression.search.trials import Candidate, SearchTask, silent
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, KerasMemWarning, TargetError
from kerasmem.files.data import fit_arguments, sample_count
from kerasmem.files.data.forms import first_samples
from kerasmem.files.save import Coding
from kerasmem.records import SearchReport, SearchTrial
from kerasmem.types import Dataset, Model

_EPOCHS = 2


@dataclass(frozen=True)
class SearchRequest:
    """A search that is asked for.

    Args:
        target: what the model may cost.
        max_drop: most that the first metric may get worse; None for any.
        until: `time.monotonic()` at which nothing more is tried.
        verbose: 0 for silence, 1 to tell of each trial on stderr.
        parallel: where the trials run; None for this process.
        epochs: of fine-tuning, unless the caller says otherwise.
        coding: of the file, unless the caller says otherwise.
    """

    target: Target
    max_drop: float | None
    until: float
    verbose: int
    parallel: Any = None
    epochs: int = _EPOCHS
    coding: Coding = "deflate"

    @classmethod
    def of(
        cls,
        target: Any,
        max_drop: float | None,
        time_budget: Any,
        verbose: int,
        parallel: Any,
    ) -> "SearchRequest":
        """Return the request that a caller means.

        Raises:
            ConfigError: if the target, the time or the place cannot be used.
        """
        seconds = math.inf if time_budget is None else time_budget
        if seconds != math.inf:
            Real(least=0).check("compress", "time_budget", time_budget)
        limits = Target.of(target)
        check_parallel(parallel)
        if parallel is not None and "latency_ms" in limits.costs:
            raise ConfigError(
                "Trials that run beside each other disturb each other's times. Next: "
                "leave out parallel, or limit flops in place of latency_ms. Received: "
                f"parallel={parallel!r}."
            )
        until = time.monotonic() + float(seconds)
        return cls(limits, max_drop, until, verbose, parallel)

    def check(self, data: Dataset, validation_data: Dataset, epochs: int) -> None:
        """Raise if there is nothing to judge by, or nothing else than for trials."""
        del epochs
        if data is None:
            raise ConfigError(
                "A search judges what it tries: give samples with labels as "
                "data=(x, y) (--data on the command line). Received: data=None."
            )
        if validation_data is None:
            return
        if _first_array(data) is _first_array(validation_data):
            raise ConfigError(
                "What is tried is judged by samples of data, and the result by others: "
                "validation_data takes samples of its own. Received: the same in both."
            )
        if (
            self.max_drop is not None
            and first_samples(validation_data).get("y") is None
        ):
            raise ConfigError(
                "max_drop is judged on validation_data, and that takes labels: give "
                f"validation_data=(x, y). Received: max_drop={self.max_drop}."
            )

    def run(
        self,
        original: Model,
        context: Context,
        coding: Coding,
        validation_data: Dataset,
    ) -> Outcome:
        """Return what the search finds; of `validation_data` it sees the number only.

        Raises:
            ConfigError: if the model has no loss, or none that tells how well it does
                its job; or if a cost of it cannot be told.
            DataError: if no samples can be held out.
        """
        if not original.compiled:
            raise ConfigError(
                f"The model {original.name!r} has no loss, so nothing that is tried "
                "can be judged. Give loss= (--loss on the command line)."
            )
        check_metric(original)
        self._check_processes(current().processes(original)[1])
        batch_size = context.fit.get("batch_size", 1)
        train, held_out = split(context.data, batch_size, context.seed)
        others = {name: context.fit[name] for name in ("callbacks", "verbose")}
        fit = fit_arguments(train, batch_size) | others
        count = None if validation_data is None else sample_count(validation_data)
        task = SearchTask(
            original=original,
            target=self.target,
            max_drop=self.max_drop,
            context=replace(context, data=train, fit=fit, custom_objects=None),
            held=held_out,
            final_samples=count,
            coding=coding,
            until=self.until,
            tell=tell if self.verbose else silent,
        )
        best, report = self._search(task)
        return Outcome(best.model, best.steps, best.changes, report)

    def _check_processes(self, processes: int) -> None:
        own = {
            "time_budget": math.isfinite(self.until),
            "latency_ms": "latency_ms" in self.target.costs,
            "parallel": self.parallel is not None,
        }
        if processes > 1 and any(own.values()):
            names = ", ".join(name for name, is_given in own.items() if is_given)
            raise ConfigError(
                "Processes that train together all have to decide alike, and each has "
                "a clock and workers of its own. Next: leave out time_budget, "
                f"latency_ms and parallel. Received: {names}, {processes} processes."
            )

    def _search(self, task: SearchTask) -> tuple[Candidate, SearchReport]:
        if self.parallel is None:
            return search(task)
        with executing(self.parallel) as executor:
            return search(task, ParallelTrials(executor, SharedSetup.of(task)))

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that `judge` needs, and those of the target."""
        own = {"latency_ms": LATENCY, "activation_bytes": ACTIVATIONS}
        target_figures = [
            name for cost, name in own.items() if cost in self.target.costs
        ]
        return (*target_figures, *(() if self.max_drop is None else (METRICS,)))

    def judge(self, result: Any) -> None:
        """Raise `TargetError`, with what is reachable and the result."""
        comparison = result.report
        report = comparison.search
        if not report.is_met:
            raise TargetError(out_of_reach(report), result)
        if self.max_drop is None:
            return
        # Written so that a metric of NaN is a drop.
        if not (metric_drop := drop_of(comparison)) <= self.max_drop:
            raise TargetError(dropped(report, comparison.samples, metric_drop), result)
        if report.chosen == 0 and not report.target:
            warnings.warn(nothing_smaller(report), KerasMemWarning, stacklevel=3)


def _first_array(data: Dataset) -> Any:
    return keras.tree.flatten(first_samples(data)["x"])[0]


def tell(trial: SearchTrial) -> None:
    """Write a line about a trial to stderr."""
    console = Console(stderr=True, highlight=False)
    console.print(f"tried {trial_text(trial)}", markup=False, soft_wrap=True)


def trial_text(trial: SearchTrial) -> str:
    """Return a trial in one line."""
    costs = ", ".join(cost_text(name, value) for name, value in trial.costs.items())
    training = "trained" if trial.epochs else "not trained"
    return (
        f"{trial.name} ({training}): {costs}, drop {trial.drop:+.4f} "
        f"± {trial.drop_error:.4f}"
    )


def out_of_reach(report: SearchReport) -> str:
    """Return what is reachable instead of the target."""
    limits = ", ".join(cost_text(name, limit) for name, limit in report.target.items())
    within = "" if report.max_drop is None else f" with max_drop={report.max_drop:g}"
    within_target = [trial for trial in report.trials if trial.over <= 1]
    if within_target:
        least = min(within_target, key=lambda trial: trial.worst_drop)
        other = f"Within the target: {trial_text(least)}."
    else:
        least = min(report.trials, key=lambda trial: trial.over)
        other = f"Smallest of all: {trial_text(least)}."
    return (
        f"Nothing that was tried meets the target ({limits}){within}. Nearest{within}: "
        f"{trial_text(report.trials[report.chosen])}. {other} Trials: "
        f"{len(report.trials)}; {report.stopped}. Next: ask for less, or give more "
        "time, samples or epochs of fine-tuning."
    )


def dropped(report: SearchReport, samples: int, lost: float) -> str:
    """Return that the result drops more on samples that no trial saw."""
    trial = report.trials[report.chosen]
    return (
        f"On the {samples or ''} samples of validation_data {report.metric} got worse "
        f"by {lost:.4f}, which is more than max_drop={report.max_drop} allows. On the "
        f"{report.samples} samples of data that judged the search it was "
        f"{trial.drop:.4f} ± {trial.drop_error:.4f}. Next: a larger max_drop, or "
        "more samples."
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
