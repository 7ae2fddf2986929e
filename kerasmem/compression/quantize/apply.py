"""Walking a model and storing its kernels in fewer bits."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.backends.layer_weights import forget_float_weights
from kerasmem.compression.account import (
    account,
    check_every_pattern_matches,
    matches,
    sqnr_db,
)
from kerasmem.compression.quantize.coding import Coded, Coding
from kerasmem.compression.quantize.layer import Place, to_quantized
from kerasmem.compression.quantize.left_float import LISTED, NO_KERNEL, why_no_kernel
from kerasmem.compression.quantize.math import finite
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.quantize.products import block_axes, is_product
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.compression.technique import stage
from kerasmem.errors import ModelError
from kerasmem.graph.kernels import is_kernel, reduced_axes
from kerasmem.graph.layers import Weight, sublayers, weights
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_BLOCKS, _LEAST_BLOCK_BYTES = 16, 1 << 16


Exclude = Callable[[Weight], bool]
"""Tells of a weight that is to be left alone."""


Scales = Mapping[str, np.ndarray]
"""Learned scales by the names of weights, see `name_of`."""

NO_SCALES: Scales = MappingProxyType({})


def quantize_weights(
    model: Any,
    choice: "Quantize",
    left: Exclude = lambda _: False,
    scales: Scales = NO_SCALES,
) -> list[WeightChange]:
    """Store the kernels and embedding tables of `model` in fewer bits, in place.

    Args:
        model: a built model.
        choice: how, and of which weights.
        left: tells of more weights to leave alone.
        scales: those that were learned; all others are those of the largest entries.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ModelError: if there is none that is float, or one with NaN or infinity.
        ConfigError: if a regular expression means no weight.
    """
    reasons = choose(model, choice, left)
    everything = [weight for weight, _ in reasons]
    block = largest_block(everything)
    places = {
        id(weight): place_of(weight, choice, block, scales.get(name_of(model, weight)))
        for weight, reason in reasons
        if reason is None
    }
    return store(model, reasons, places)


def store(
    model: Any,
    reasons: Sequence[tuple[Weight, str | None]],
    places: Mapping[int, Place],
) -> list[WeightChange]:
    """Store weights of `model` as their places say, in place.

    Args:
        model: a built model.
        reasons: every weight with why it is left alone, None if it is not.
        places: of those that are not, by the id of the `Weight`.

    Returns:
        One change per weight.

    Raises:
        ModelError: if one holds NaN or infinity.
    """
    changes = {
        id(weight): account(weight, "quantize", reason, changed=False)
        for weight, reason in reasons
        if reason
    }
    done, total = 0, sum(weight.nbytes for weight, reason in reasons if not reason)
    by_block: dict[int, tuple[Any, list[Place], dict[int, Coded]]] = {}
    for weight, reason in reasons:
        if reason is None:
            place = places[id(weight)]
            coded, changes[id(weight)] = _encoded(weight, place)
            held = by_block.setdefault(id(weight.block), (weight.block, [], {}))
            held[1].append(place)
            held[2][id(weight.variable)] = coded
            done += weight.nbytes
            stage("quantize", done, total)
    # Only now: a weight that cannot be stored leaves the model as it was.
    while by_block:
        to_quantized(*by_block.pop(next(iter(by_block))))
    forget_float_weights(sublayers(model))
    return [changes[id(weight)] for weight, _ in reasons]


def choose(
    model: Any, choice: "Quantize", left: Exclude = lambda _: False
) -> list[tuple[Weight, str | None]]:
    """Return every weight of a model with why it is left alone, None if it is not.

    Raises:
        ModelError: if all are.
        ConfigError: if a regular expression means no weight.
    """
    everything = list(weights(model))
    check_every_pattern_matches(
        model, everything, {"include": choice.include, "exclude": choice.exclude}
    )
    reasons = [
        why or _why_not_meant(weight, choice, left)
        for weight, why in why_not_storable(model, everything, choice.dtype)
    ]
    if all(reasons):
        raise ModelError(
            f"The model {model.name!r} has nothing to quantize: none of its "
            f"{len(everything)} weights is a float kernel or embedding table that is "
            "not excluded."
        )
    return list(zip(everything, reasons, strict=True))


def why_not_storable(
    model: Any, everything: Sequence[Weight], dtype: str
) -> list[tuple[Weight, str | None]]:
    """Return weights, each with why it cannot be stored as `dtype`, None if it can.

    Args:
        model: the model.
        everything: its weights.
        dtype: of the codes.
    """
    stored = {id(v.codes): v for v in quantized_variables(model)}
    return [(w, _why_not(w, dtype, stored.get(id(w.variable)))) for w in everything]


def _why_not(
    weight: Weight, wanted: str, stored: QuantizedVariable | None
) -> str | None:
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if stored is not None:
        return f"is {stored.coding.dtype} already"
    if not keras.backend.is_float_dtype(dtype) or wanted == dtype:
        return f"is {dtype} already"
    if weight.attribute is None and is_kernel(weight):
        return LISTED
    return None


def _why_not_meant(weight: Weight, choice: "Quantize", left: Exclude) -> str | None:
    if left(weight) or matches(choice.exclude, weight):
        return "is excluded"
    if is_kernel(weight):
        return None
    if not matches(choice.include, weight):
        return NO_KERNEL if choice.include else why_no_kernel(weight)
    if weight.attribute is None or len(weight.variable.shape) < 2:
        return "has fewer than two axes, or is kept in a list"
    return None


def place_of(
    weight: Weight,
    choice: "Quantize",
    block_bytes: int,
    scales: np.ndarray | None = None,
) -> Place:
    """Return where a weight is kept, and how a choice has it stored.

    Args:
        weight: it.
        choice: the scheme.
        block_bytes: most bytes of it that are to be float at once.
        scales: those that it is to have; None for those of its largest entries.
    """
    coding = coding_of(choice, channel_axes(weight))
    place = placed(weight, coding, block_bytes, dynamic=choice.is_dynamic)
    return replace(place, scales=scales)


def coding_of(choice: "Quantize", axes: tuple[int, ...]) -> Coding:
    """Return how a weight is stored whose output channels sum over `axes`."""
    size = (choice.granularity, choice.group_size, choice.symmetric)
    return Coding(choice.dtype, axes, *size)


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


def channel_axes(weight: Weight) -> tuple[int, ...]:
    """Return the axes that one output channel sums over, in order."""
    return tuple(sorted(reduced_axes(weight)))


def placed(
    weight: Weight, coding: Coding, block_bytes: int, *, dynamic: bool = False
) -> Place:
    """Return where a weight is kept, with how it is to be stored.

    Args:
        weight: it.
        coding: how it is to be stored.
        block_bytes: most bytes of it that are to be float at once.
        dynamic: whether what it multiplies is rounded in every call, where that goes.
    """
    layers = sublayers(weight.block)
    index = next(i for i, layer in enumerate(layers) if layer is weight.owner)
    taken_apart = is_product(weight.owner) and weight.attribute == "_kernel"
    blocks = 1
    if taken_apart and (cut := block_axes(weight.owner)) is not None:
        wanted = math.ceil(4 * weight.size / block_bytes)
        blocks = min(wanted, weight.variable.shape[cut[0]])
    attribute = str(weight.attribute)
    return Place(index, attribute, coding, blocks, dynamic and taken_apart)


def largest_block(everything: list[Weight]) -> int:
    """Return the most bytes of a weight that are to be float at once.

    A layer that holds a large part of a model would else take, for a moment, more
    memory than it saves.
    """
    total = 4 * sum(weight.size for weight in everything)
    return max(total // _BLOCKS, _LEAST_BLOCK_BYTES)


def _encoded(weight: Weight, place: Place) -> tuple[Coded, WeightChange]:
    """Return the codes of a weight, and what is told of them."""
    values = finite(to_numpy(weight.variable), weight.path)
    coded = place.coding.encode(values, place.scales)
    detail = place.coding.describe(coded)
    if not values.any():
        detail += ", all zero"
    elif place.dynamic:
        detail += ", times int8"
    return coded, account(
        weight,
        "quantize",
        detail,
        changed=True,
        after_bytes=sum(map(nbytes, coded.parts)),
        sqnr_db=sqnr_db(values, place.coding.decoded(coded, values.shape)),
    )
