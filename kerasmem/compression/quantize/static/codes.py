"""int8 codes for real numbers: a scale and the code of zero."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST, MOST = -128, 127


@dataclass(frozen=True)
class Codes:
    """What the int8 codes of a tensor stand for: `scale * (code - zero_point)`.

    Args:
        scale: a positive float32 number.
        zero_point: the code of 0, in [-128, 127].
    """

    scale: float
    zero_point: int

    @classmethod
    def of_range(cls, low: float, high: float) -> "Codes":
        """Return the codes for a range.

        Args:
            low: its lower end, at most 0.
            high: its upper end, at least 0 and above `low`.

        Example:
            >>> Codes.of_range(0.0, 255.0)
            Codes(scale=1.0, zero_point=-128)
        """
        scale = np.float32((high - low) / (MOST - LEAST))
        scale = float(max(scale, np.finfo(np.float32).tiny))
        return cls(scale, min(MOST, max(LEAST, rounded(LEAST - low / scale))))

    def of(self, value: float) -> int:
        """Return the code of a real number, in [-128, 127].

        Example:
            >>> Codes(0.5, -128).of(6.0)
            -116
        """
        code = rounded(float(np.float32(value) / np.float32(self.scale)))
        return min(MOST, max(LEAST, code + self.zero_point))

    def to_json(self) -> dict[str, Any]:
        """Return this as plain data."""
        return dict(vars(self))


def rounded(value: float) -> int:
    """Return the nearest whole number, the one farther from zero of two, as C does.

    Example:
        >>> rounded(-0.5), rounded(2.5)
        (-1, 3)
    """
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
