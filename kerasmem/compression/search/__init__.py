"""Requests, checks and messages of a compression search."""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
from kerasmem.compression.search.strategy import OUT_OF_TIME, search
from kerasmem.compression.search.target import Target, cost_text
from kerasmem.compression.search.trials import Candidate, SearchTask, silent
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, KerasMemWarning, TargetError
from kerasmem.files.data import fit_arguments, sample_count
from kerasmem.files.data.forms import first_samples
from kerasmem.files.save import Coding
from kerasmem.records import SearchReport, SearchTrial
from kerasmem.records.figures import SURE
from kerasmem.types import Dataset, Model

_EPOCHS = 2


@dataclass(frozen=True)
class SearchRequest:
    """Settings of a search.

    `until` is the `time.monotonic()` deadline of the trials. `epochs` and `coding` are
    defaults that the caller can override. `freezes` is `False`, because trials train.
    """

    target: Target
    max_drop: float | None
    until: float
    verbose: int
    parallel: Any = None
    epochs: int = _EPOCHS
    coding: Coding = "deflate"
    freezes: bool = False

    @classmethod
    def of(
        cls,
        target: Any,
        max_drop: float | None,
        time_budget: Any,
        verbose: int,
        parallel: Any,
    ) -> "SearchRequest":
        """Creates a request from arguments of `compress`."""
        seconds = math.inf if time_budget is None else time_budget
        if seconds != math.inf:
            Real(least=0).check("compress", "time_budget", time_budget)
        limits = Target.of(target)
        check_parallel(parallel)
        if parallel is not None and "latency_ms" in limits.costs:
            raise ConfigError(
                "Parallel trials distort latency measurements. Received: "
                f"parallel={parallel!r}. Next: leave out parallel, or limit flops "
                "instead of latency_ms."
            )
        until = time.monotonic() + float(seconds)
        return cls(limits, max_drop, until, verbose, parallel)

    def check(self, data: Dataset, validation_data: Dataset, epochs: int) -> None:
        """Raises `ConfigError` without data, or without separate validation data."""
        del epochs
        if data is None:
            raise ConfigError(
                "A search needs labeled samples to evaluate its trials. Received: "
                "data=None. Next: give data=(x, y) (--data on the command line)."
            )
        if validation_data is None:
            return
        if _first_array(data) is _first_array(validation_data):
            raise ConfigError(
                "A search evaluates its trials on data and its result on "
                "validation_data, so these must be different samples. Received: the "
                "same samples in both."
            )
        if (
            self.max_drop is not None
            and first_samples(validation_data).get("y") is None
        ):
            raise ConfigError(
                "max_drop is evaluated on validation_data, which needs labels. "
                f"Received: max_drop={self.max_drop}. Next: give validation_data="
                "(x, y)."
            )

    def prepare(
        self,
        original: Model,
        context: Context,
        coding: Coding,
        validation_data: Dataset,
    ) -> Callable[[list[Any]], Outcome]:
        """Returns a function that runs the search from `original`.

        It only uses the number of samples in `validation_data`.

        Raises:
            ConfigError: If the model has no comparable loss or metric, or one of its
                costs cannot be computed.
            DataError: If no samples can be held out.
        """
        if not original.compiled:
            raise ConfigError(
                f"The model {original.name!r} has no loss, so trials cannot be "
                "evaluated. Next: give loss= (--loss on the command line)."
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
            context=replace(
                context, data=train, fit=fit, custom_objects=None, original=None
            ),
            held=held_out,
            final_samples=count,
            coding=coding,
            until=self.until,
            tell=tell if self.verbose else silent,
        )
        return partial(self._run, task)

    def _run(self, task: SearchTask, copies: list[Any]) -> Outcome:
        del copies  # each trial makes one
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
                "Processes that train together must make equal decisions, but each has "
                f"separate clocks and workers. Received: {names}, {processes} "
                "processes. Next: leave out time_budget, latency_ms and parallel."
            )

    def _search(self, task: SearchTask) -> tuple[Candidate, SearchReport]:
        if self.parallel is None:
            return search(task)
        with executing(self.parallel) as executor:
            return search(task, ParallelTrials(executor, SharedSetup.of(task)))

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that `judge` and the target need."""
        own = {"latency_ms": LATENCY, "activation_bytes": ACTIVATIONS}
        target_figures = [
            name for cost, name in own.items() if cost in self.target.costs
        ]
        return (*target_figures, *(() if self.max_drop is None else (METRICS,)))

    def judge(self, result: Any) -> None:
        """Raises `TargetError` if the result misses the target or drops too much."""
        comparison = result.report
        report = comparison.search
        if not report.is_met:
            raise TargetError(out_of_reach(report), result)
        if self.max_drop is None:
            return
        # A NaN metric must count as a drop.
        if not (metric_drop := drop_of(comparison)) <= self.max_drop:
            raise TargetError(dropped(report, comparison.samples, metric_drop), result)
        if report.chosen == 0 and not report.target:
            warnings.warn(nothing_smaller(report), KerasMemWarning, stacklevel=3)


def _first_array(data: Dataset) -> Any:
    return keras.tree.flatten(first_samples(data)["x"])[0]


def tell(trial: SearchTrial) -> None:
    """Prints a trial to stderr."""
    console = Console(stderr=True, highlight=False)
    console.print(f"tried {trial_text(trial)}", markup=False, soft_wrap=True)


def trial_text(trial: SearchTrial) -> str:
    """Returns a trial in one line."""
    costs = ", ".join(cost_text(name, value) for name, value in trial.costs.items())
    training = "trained" if trial.epochs else "not trained"
    return (
        f"{trial.name} ({training}): {costs}, drop {trial.drop:+.4f} "
        f"(standard error {trial.drop_error:.4f})"
    )


def out_of_reach(report: SearchReport) -> str:
    """Returns the message that the target was not reached, with the closest trials."""
    limits = ", ".join(cost_text(name, limit) for name, limit in report.target.items())
    within = "" if report.max_drop is None else f" with max_drop={report.max_drop:g}"
    within_target = [trial for trial in report.trials if trial.over <= 1]
    if within_target:
        least = min(within_target, key=lambda trial: trial.worst_drop)
        other = f" Within the target: {trial_text(least)}."
    else:
        least = min(report.trials, key=lambda trial: trial.over)
        other = f" Smallest of all: {trial_text(least)}."
    nearest = report.trials[report.chosen]
    time_or_not = "time, " if report.stopped == OUT_OF_TIME else ""
    return (
        f"No trial meets the target ({limits}){within}. Nearest{within}: "
        f"{trial_text(nearest)}.{other if least is not nearest else ''} Trials: "
        f"{len(report.trials)}; {report.stopped}. Next: relax the target, or give more "
        f"{time_or_not}samples or epochs of fine-tuning."
    )


def dropped(report: SearchReport, samples: int, lost: float) -> str:
    """Returns the message that the result drops too much on validation data."""
    trial = report.trials[report.chosen]
    return (
        f"On the {samples or ''} samples of validation_data, {report.metric} got worse "
        f"by {lost:.4f}, which exceeds max_drop={report.max_drop}. On the "
        f"{report.samples} held-out samples of data, the drop was "
        f"{trial.drop:.4f} (standard error {trial.drop_error:.4f}). Next: increase "
        "max_drop, or give more samples."
    )


def nothing_smaller(report: SearchReport) -> str:
    """Returns the message that no trial stays within `max_drop`."""
    errors = (trial.drop_error for trial in report.trials[1:])
    margin = SURE * min(errors, default=math.nan)
    return (
        "No smaller model stays within "
        f"max_drop={report.max_drop:g} with certainty, so the model is unchanged "
        f"({report.stopped}). The drop plus {SURE} standard errors must be within "
        f"max_drop; with these samples, {SURE} standard errors are at least "
        f"{margin:.4f}. Next: give more samples, or increase max_drop."
    )
