"""What is searched for, and what came of one trial."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerasmem.compression.search.judging import Held
from kerasmem.compression.search.target import Target
from kerasmem.compression.technique import Context, Technique
from kerasmem.files.save import Coding
from kerasmem.records import SearchTrial, WeightChange


def silent(trial: SearchTrial) -> None:
    """Tell nothing."""
    del trial


@dataclass(frozen=True)
class Task:
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
    held: Held
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

    def meets(self, trial: SearchTrial) -> bool:
        """Return whether a trial costs no more than the target allows."""
        return bool(self.target.limits) and trial.over <= 1

    def rank(self, trial: SearchTrial) -> tuple[float, float, float]:
        """Return what the best trial has the least of.

        Of those that meet the target and do their job, the one that drops least; else
        of those that do their job, the smallest.
        """
        if self.keeps(trial):
            if self.meets(trial):
                return 0, trial.worst_drop, trial.over
            return 1, trial.over, trial.worst_drop
        return 2, trial.worst_drop, trial.over


@dataclass(frozen=True)
class Made:
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
