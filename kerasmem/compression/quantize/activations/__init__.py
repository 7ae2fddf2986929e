"""The ranges of activations, from a sample of data that streams through the model."""

from collections.abc import Sequence

from kerasmem.compression.quantize.activations.calibrate import (
    calibrate,
)
from kerasmem.records import ActivationRange

_HEAD = ("tensor", "low", "high", "seen from", "to", "scale", "zero")


def range_table(ranges: Sequence[ActivationRange]) -> str:
    """Return the ranges as lines of text, with what was seen and the int8 codes.

    Example:
        >>> print(range_table([ActivationRange("relu", 0.0, 5.1, 0.0, 6.0, 10)]))
        tensor  low  high  seen from  to  scale  zero
        relu      0   5.1          0   6   0.02  -128
    """
    rows = [_HEAD, *(_row(each) for each in ranges)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _row(each: ActivationRange) -> tuple[str, ...]:
    figures = (each.low, each.high, each.least, each.most, each.scale)
    return (each.tensor, *(f"{value:.4g}" for value in figures), str(each.zero_point))


__all__ = ["calibrate", "range_table"]
