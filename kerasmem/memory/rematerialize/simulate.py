"""The costs of a step in which pieces of the model are computed again."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.memory.rematerialize.recorded import RecordedStep, work


@dataclass(frozen=True)
class Simulation:
    """What a step with pieces computed again is estimated to need.

    Args:
        peak_bytes: its peak.
        extra_time: time of what is computed again, as a share of the plain step's.
    """

    peak_bytes: int
    extra_time: float


def simulate(step: RecordedStep, pieces: Sequence[tuple[int, int]]) -> Simulation:
    """Return the costs of a step.

    Args:
        step: the plain step.
        pieces: ranges of calls, each computed again as one.
    """
    lean = step.with_pieces(pieces)
    extra = sum(map(work, lean.ops)) - step.work
    return Simulation(step.peak_bytes(lean), extra / step.work)
