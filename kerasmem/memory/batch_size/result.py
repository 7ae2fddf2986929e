"""What a search for a batch size found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """One batch size, tried in a child process.

    Args:
        batch_size: samples in the batch.
        fits: whether several steps ran within the limit.
        peak_bytes: measured peak of a later step, None if it did not run or the
            backend does not tell.
        reason: why it does not fit, `""` if it does.
    """

    batch_size: int
    fits: bool
    peak_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class CurvePoint:
    """The peak at one batch size.

    Args:
        batch_size: samples in the batch.
        predicted_bytes: estimated peak, corrected by what was measured.
        measured_bytes: measured peak, None where no step ran.
    """

    batch_size: int
    predicted_bytes: int
    measured_bytes: int | None


class BatchSize(int):
    """A batch size that ran: an int that knows how it was found.

    Attributes:
        limit_bytes: the memory limit.
        curve: the peak by batch size, ascending.
        trials: what was tried, in order.
    """

    limit_bytes: int
    curve: tuple[CurvePoint, ...]
    trials: tuple[Trial, ...]

    def __new__(
        cls,
        batch_size: int,
        *,
        limit_bytes: int,
        curve: tuple[CurvePoint, ...],
        trials: tuple[Trial, ...],
    ) -> "BatchSize":
        """Return the number with its story."""
        self = super().__new__(cls, batch_size)
        self.limit_bytes, self.curve, self.trials = limit_bytes, curve, trials
        return self
