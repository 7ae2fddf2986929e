"""Ranges of activations that an earlier training has found."""

import math
import re
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

from kerasmem.compression.quantize.activations.calls import flatten
from kerasmem.compression.quantize.static.split import split
from kerasmem.errors import ConfigError, ModelError

Ranges = Mapping[str, tuple[float, float]]
"""Pairs of ends by the name of a tensor."""

_NAMELESS = re.compile(r"keras_tensor(_\d+)?")


def check_ranges(ranges: Any) -> None:
    """Raise unless these are ranges.

    Raises:
        ConfigError: if they are not, with the first that is none.
    """
    if not isinstance(ranges, Mapping):
        raise ConfigError(
            "Ranges are pairs of ends by the name of a tensor, such as those of an "
            f"earlier training. Received: ranges={ranges!r}."
        )
    for name, ends in ranges.items():
        if not _is_range(ends):
            raise ConfigError(
                "A range has a lower and an upper end, both finite. "
                f"Received: ranges[{name!r}]={ends!r}."
            )


def check_known(model: Any, ranges: Ranges, places: Collection[str]) -> None:
    """Raise unless all ranges are of tensors of a model.

    An Input that was given no name has another one in each copy of a model; its range
    is not looked at.

    Args:
        model: a model with a graph.
        ranges: the ranges.
        places: names that are known to be in it.

    Raises:
        ModelError: if one is not.
    """
    unknown = [name for name in ranges if not _NAMELESS.fullmatch(name)]
    for names in (
        lambda: places,
        lambda: flatten(model).names,
        lambda: flatten(model, split).names,
    ):
        if unknown:
            known = set(names())
            unknown = [name for name in unknown if name not in known]
    if unknown:
        raise ModelError(
            f"{len(unknown)} of {len(ranges)} ranges are of no tensor of the model "
            f"{model.name!r}. Expected: those of an earlier training of this model. "
            f"Received: ranges of {', '.join(map(repr, unknown[:3]))}. Next: make a "
            "new QuantizationAware for each model, without ranges."
        )


def _is_range(ends: Any) -> bool:
    is_pair = isinstance(ends, tuple | list) and len(ends) == 2
    if not is_pair or not all(isinstance(end, Real) for end in ends):
        return False
    return all(map(math.isfinite, ends)) and ends[0] <= ends[1]
