"""The range of one activation, and the int8 codes that it gets."""

from dataclasses import dataclass

_CODES = 255


@dataclass(frozen=True)
class ActivationRange:
    """What one tensor of a forward pass takes, as a calibration saw it.

    Args:
        tensor: the call that gives it, such as `"encoder/conv"`, with `:1` and so on
            for further calls of one layer, and `.1` and so on for further outputs.
        low: lower end of the range that codes are for, at most 0.
        high: upper end, at least 0 and above `low`.
        least: the smallest value seen.
        most: the largest value seen.
        values: number of values seen.
    """

    tensor: str
    low: float
    high: float
    least: float
    most: float
    values: int

    @property
    def scale(self) -> float:
        """What one step of the codes stands for."""
        return (self.high - self.low) / _CODES

    @property
    def zero_point(self) -> int:
        """The code of 0, in [-128, 127]: zero is one of the numbers that codes have."""
        return max(-128, min(127, round(-128 - self.low / self.scale)))

    @property
    def is_constant(self) -> bool:
        """Whether every value seen was the same."""
        return self.least == self.most
