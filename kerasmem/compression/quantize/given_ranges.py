"""Ranges of activations that an earlier training has found."""

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

import keras

from kerasmem.errors import ConfigError
from kerasmem.graph.nodes import own_graph

Ranges = Mapping[str, tuple[float, float]]
"""Pairs of ends by the name of a tensor."""

NAMELESS = re.compile(r"keras_tensor(_\d+)?")
"""What Keras names an Input that was given no name, another one in each copy."""


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
        if not isinstance(name, str):
            raise ConfigError(
                "A range is that of a tensor, by its name. "
                f"Received: ranges[{name!r}]={ends!r}."
            )
        if not _is_range(ends):
            raise ConfigError(
                "A range has a lower and an upper end, both finite. "
                f"Received: ranges[{name!r}]={ends!r}."
            )


def as_pairs(given: Any) -> tuple[tuple[str, tuple[float, float]], ...]:
    """Return ranges as names with ends, of a mapping or of such pairs.

    Raises:
        ConfigError: if they are no ranges, with the first that is none.
    """
    is_list = isinstance(given, tuple | list)
    is_pairs = is_list and all(
        isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[0], str)
        for each in given
    )
    ranges: Any = dict(given) if is_pairs else given
    check_ranges(ranges)
    return tuple(
        (name, (float(low), float(high))) for name, (low, high) in ranges.items()
    )


def named_as_in(model: Any, ranges: Ranges) -> dict[str, tuple[float, float]]:
    """Return ranges with those of Inputs without a name under the names they have here.

    They are told from each other by their order; where there are not as many as Inputs
    that have no range, they are left out.

    Args:
        model: a model with a graph, a copy of the one that the ranges are of.
        ranges: the ranges.
    """
    inputs = [x.name for x in own_graph(model).inputs if _is_float(x)]
    there = [name for name in ranges if NAMELESS.fullmatch(name)]
    if set(there) <= set(inputs):
        return dict(ranges)
    # Numbered on from where they were, so that one may have the name of another.
    known = {name: ends for name, ends in ranges.items() if name not in there}
    here = [name for name in inputs if name not in known]
    if len(here) != len(there):
        return known
    return known | {new: ranges[old] for new, old in zip(here, there, strict=True)}


def _is_float(tensor: Any) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))


def _is_range(ends: Any) -> bool:
    is_pair = isinstance(ends, tuple | list) and len(ends) == 2
    if not is_pair or not all(isinstance(end, Real) for end in ends):
        return False
    return all(map(math.isfinite, ends)) and ends[0] <= ends[1]
