"""What a search knows so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kerasmem.compression.search.judging import Metrics
from kerasmem.compression.search.target import Target
from kerasmem.compression.search.task import Made
from kerasmem.compression.technique import Technique
from kerasmem.records import SearchTrial

Steps = tuple[Technique, ...]


@dataclass
class Found:
    """All that was looked at; the first trial is the model unchanged.

    Args:
        before: metrics of the model unchanged, part by part.
        limits: what a cost is a share of.
        best: the best trial; its model is None if that lies in another process.
        tried: what was judged, by its techniques and whether it was trained.
        weighed: cost as a share of the limits by techniques, infinite if they cannot
            be applied.
        reasons: why a family could not be applied the last time, by its name.
        left_out: why a family is not tried at all, by its name.
    """

    before: Sequence[Metrics]
    limits: Target
    best: Made
    tried: dict[tuple[Steps, bool], SearchTrial] = field(default_factory=dict)
    weighed: dict[Steps, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def without_model(self) -> "Found":
        """Return a copy that another process can go on from."""
        return replace(
            self,
            best=replace(self.best, model=None, changes=[]),
            tried=dict(self.tried),
            weighed=dict(self.weighed),
            reasons=dict(self.reasons),
            left_out=dict(self.left_out),
        )

    def add(self, other: "Found") -> list[SearchTrial]:
        """Take over all but the best from one that went on, and return its new trials.

        What was known already stays: so the order in which others are added decides,
        not who was first.
        """
        new = {key: t for key, t in other.tried.items() if key not in self.tried}
        self.tried |= new
        self.weighed = other.weighed | self.weighed
        self.reasons |= other.reasons
        self.left_out |= other.left_out
        return list(new.values())
