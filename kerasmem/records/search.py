"""What a search for a small model has tried, and what came of it."""

from dataclasses import dataclass

SURE = 2.5
"""Standard errors by which a drop may be worse than it looks. A normal variable is
further off in one of 160 cases; a search takes the best of some dozen."""


@dataclass(frozen=True)
class SearchTrial:
    """One compression that was tried.

    Args:
        name: which techniques, in words; `"unchanged"` for none.
        steps: the techniques, in order, as their JSON configs.
        epochs: of fine-tuning after each technique that allows it.
        costs: what the target limits, by name; the file without a target.
        over: the largest of the costs as a share of its limit, at most 1 if all are
            met; without a target, the file as a share of the unchanged model's.
        drop: by how much the first metric got worse on samples kept for the search.
        drop_error: standard error of that, for samples as many as those and as many as
            the final judgement has.
        seconds: what the trial took.
        on_front: no other trial costs less and drops no more, or the other way round.
    """

    name: str
    steps: tuple[dict[str, object], ...]
    epochs: int
    costs: dict[str, float]
    over: float
    drop: float
    drop_error: float
    seconds: float = 0.0
    on_front: bool = False

    @property
    def worst_drop(self) -> float:
        """The drop that is hardly exceeded on other samples; infinite if unknown."""
        worst = self.drop + SURE * self.drop_error
        return worst if worst == worst else float("inf")


@dataclass(frozen=True)
class SearchReport:
    """A search, from its first trial to its last.

    Args:
        target: the limits by name, empty for as small a file as `max_drop` allows.
        max_drop: the largest drop allowed; None for any.
        metric: name of the metric that the drop is of.
        samples: number of samples that judged the trials; nothing was trained on them,
            and none of them judges the result.
        trials: all that were judged, in order; the first is the model unchanged.
        chosen: which of them was taken.
        left_out: techniques that were not tried, with the reason.
        stopped: why no more were tried.
    """

    target: dict[str, float]
    max_drop: float | None
    metric: str
    samples: int
    trials: tuple[SearchTrial, ...]
    chosen: int
    left_out: dict[str, str]
    stopped: str

    @property
    def is_met(self) -> bool:
        """Whether what was taken is within the target and within `max_drop`."""
        found = self.trials[self.chosen]
        met = found.over <= 1 or not self.target
        return met and (self.max_drop is None or found.worst_drop <= self.max_drop)
