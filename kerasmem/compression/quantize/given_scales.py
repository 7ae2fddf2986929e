"""Scales of weights that an earlier training has learned."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.quantize.coding import Coding
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.layers import Weight, sublayers

_LEAST = np.finfo(np.float32).tiny
"""The inverse of a smaller number is infinite."""

Scales = Sequence[tuple[str, tuple[float, ...]]]
"""Names of weights, each with its scales in the order in which they are stored."""


def name_of(model: Any, weight: Weight) -> str:
    """Return what names a weight in a model and in all that are made of its config.

    It is the layer's name and the weight's, such as `"dense/kernel"`, with the models
    around it and, for a layer within a layer, its number there between them.
    """
    layers = sublayers(weight.block)
    index = next(i for i, layer in enumerate(layers) if layer is weight.owner)
    # A copy of a subclassed model may have another name.
    place = () if weight.block is model else weight.place
    within = (str(index),) if index else ()
    own = weight.attribute or weight.variable.name
    return "/".join([*place, *within, own.lstrip("_")])


def as_scales(given: Any) -> Scales:
    """Return scales as names with numbers, of a mapping or of such pairs.

    Raises:
        ConfigError: if they are no scales, with the first that is none.
    """
    is_list = isinstance(given, tuple | list)
    is_pairs = is_list and all(
        isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[0], str)
        for each in given
    )
    scales: Any = dict(given) if is_pairs else given
    if not isinstance(scales, Mapping):
        raise ConfigError(
            "Scales are positive numbers by the name of a weight, such as those that "
            f"an earlier training has learned. Received: scales={given!r}."
        )
    return tuple((name, _numbers(name, values)) for name, values in scales.items())


def scales_in(
    model: Any, everything: Sequence[Weight], scales: Scales
) -> dict[int, tuple[float, ...]]:
    """Return the scales of the weights of a model, by the ids of their variables.

    Args:
        model: the model.
        everything: its weights.
        scales: the scales.

    Raises:
        ModelError: if some are of no weight of the model.
    """
    if not scales:
        return {}
    known = {name_of(model, weight): id(weight.variable) for weight in everything}
    unknown = [name for name, _ in scales if name not in known]
    if unknown:
        raise ModelError(
            f"{len(unknown)} of {len(scales)} scales are of no weight of the model "
            f"{model.name!r}. Expected: those of an earlier training of this model. "
            f"Received: scales of {', '.join(map(repr, unknown[:3]))}. Next: leave "
            "them out."
        )
    return {known[name]: numbers for name, numbers in scales}


def in_shape(weight: Weight, coding: Coding, given: Sequence[float]) -> np.ndarray:
    """Return the scales of a weight as they are stored, float32.

    Raises:
        ModelError: if there are more or less of them than it has.
    """
    shape = coding.stored(tuple(weight.variable.shape)).scales[0]
    count = math.prod(shape)
    if len(given) != count:
        raise ModelError(
            f"The weight {weight.path!r} has {count} scales, with "
            f"granularity={coding.granularity!r}. Received: {len(given)} of them. "
            "Next: give those of a training with the same scheme and granularity."
        )
    return np.reshape(np.array(given, "float32"), shape)


def _numbers(name: Any, values: Any) -> tuple[float, ...]:
    try:
        with np.errstate(over="ignore"):  # it is infinite then
            numbers = np.asarray(values, "float32").reshape(-1)
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    is_good = numbers.size and np.isfinite(numbers).all() and numbers.min() >= _LEAST
    if not isinstance(name, str) or not is_good:
        raise ConfigError(
            "The scales of a weight are finite numbers above 0, by its name. Received: "
            f"scales[{name!r}]={values!r}."
        )
    return tuple(numbers.tolist())
