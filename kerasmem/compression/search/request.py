"""What a caller wants of a search, and what they are told in the end."""

import math
import time
import warnings
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import keras

from kerasmem.compression.job import Done, Job
from kerasmem.compression.judge import check_metric, drop_of
from kerasmem.compression.search.search import search
from kerasmem.compression.search.split import split
from kerasmem.compression.search.target import Target
from kerasmem.compression.search.task import Task
from kerasmem.compression.search.telling import (
    dropped,
    nothing_smaller,
    out_of_reach,
    tell,
)
from kerasmem.compression.stages import Training
from kerasmem.errors import ConfigError, KerasMemWarning, TargetError
from kerasmem.files.data import fit_arguments, sample_count
from kerasmem.files.data.forms import first_samples
from kerasmem.files.save import Coding

_EPOCHS = 2


@dataclass(frozen=True)
class Request(Job):
    """A search that is asked for.

    Args:
        target: what the model may cost.
        max_drop: most that the first metric may get worse; None for any.
        until: `time.monotonic()` at which nothing more is tried.
        verbose: 0 for silence, 1 to tell of each trial on stderr.
        epochs: of fine-tuning, unless the caller says otherwise.
        coding: of the file, unless the caller says otherwise.
    """

    target: Target
    max_drop: float | None
    until: float
    verbose: int
    epochs: int = _EPOCHS
    coding: Coding = "deflate"

    @classmethod
    def of(
        cls, target: Any, max_drop: float | None, time_budget: Any, verbose: int
    ) -> "Request":
        """Return the request that a caller means.

        Raises:
            ConfigError: if the target or the time cannot be used.
        """
        seconds = math.inf if time_budget is None else time_budget
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if not is_number or not float(seconds) >= 0:
            raise ConfigError(
                "The time budget of a search is a number of seconds from 0. Received: "
                f"time_budget={time_budget!r}."
            )
        until = time.monotonic() + float(seconds)
        return cls(Target.of(target), max_drop, until, verbose)

    def check(self, data: Any, validation_data: Any, epochs: int) -> None:
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
        self, original: Any, training: Training, coding: Coding, validation_data: Any
    ) -> Done:
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
        batch_size = training.fit.get("batch_size", 1)
        train, held = split(training.data, batch_size, training.seed)
        others = {name: training.fit[name] for name in ("callbacks", "verbose")}
        fit = fit_arguments(train, batch_size) | others
        count = None if validation_data is None else sample_count(validation_data)
        task = Task(
            original=original,
            target=self.target,
            max_drop=self.max_drop,
            training=replace(training, data=train, fit=fit),
            held=held,
            final_samples=count,
            coding=coding,
            until=self.until,
            tell=tell if self.verbose else lambda _: None,
        )
        best, report = search(task)
        return Done(best.model, best.steps, best.changes, report)

    def judge(self, result: Any) -> None:
        """Raise `TargetError`, with what is reachable and the result."""
        report = result.report.search
        if not report.is_met:
            raise TargetError(out_of_reach(report), result)
        if self.max_drop is None:
            return
        # Written so that a metric of NaN is a drop.
        if not (lost := drop_of(result.report)) <= self.max_drop:
            raise TargetError(dropped(report, result.report.samples, lost), result)
        if report.chosen == 0 and not report.target:
            warnings.warn(nothing_smaller(report), KerasMemWarning, stacklevel=3)


def _first_array(data: Any) -> Any:
    return keras.tree.flatten(first_samples(data)["x"])[0]
