"""Quantization of the kernels and embedding tables of a model."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.backends.lazy import kept_at_rest
from kerasmem.backends.variables import forget_float_weights
from kerasmem.compression.account import (
    NO_KERNEL,
    account,
    check_every_pattern_matches,
    decibels,
    matches,
)
from kerasmem.compression.quantize.coding import Coded, Coding
from kerasmem.compression.quantize.config import GROUP_SIZE
from kerasmem.compression.quantize.layer import WeightPlace, to_quantized
from kerasmem.compression.quantize.math import finite
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.quantize.products import (
    block_axes,
    is_product,
    multiplied_weight,
)
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.files.threads import in_order
from kerasmem.graph.kernels import (
    is_convolution,
    is_embedding,
    is_kernel,
    reduced_axes,
)
from kerasmem.graph.layers import Weight, sublayers, weights
from kerasmem.graph.values import array_of
from kerasmem.records import WeightChange
from kerasmem.stages import Progress
from kerasmem.types import Model
from kerasmem.units import format_bytes

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_BLOCKS, _LEAST_BLOCK_BYTES = 16, 1 << 16


Exclude = Callable[[Weight], bool]
"""Returns whether a weight is excluded."""


def excludes_nothing(_: Weight) -> bool:
    """Return False for any weight."""
    return False


Scales = Mapping[str, np.ndarray]
"""Learned scales by weight name. See `name_of`."""

NO_SCALES: Scales = MappingProxyType({})


ActivationScales = Mapping[int, float]
"""Scales of layer inputs by the id of the variable that multiplies them."""

NO_ACTIVATION_SCALES: ActivationScales = MappingProxyType({})


WeightPlan = Sequence[tuple[Weight, WeightPlace | str]]
"""Every weight of a model with its storage format, or with the reason to skip it."""


def quantize_weights(
    model: Model,
    config: "Quantize",
    exclude: Exclude = excludes_nothing,
) -> list[WeightChange]:
    """Quantize the kernels and embedding tables of `model` in place.

    Raises:
        ModelError: If no weight can be quantized, or a weight contains NaN or infinity.
        ConfigError: If a regular expression matches no weight.
    """
    return store(model, weight_plan(model, config, exclude))


def store(model: Model, plan: WeightPlan) -> list[WeightChange]:
    """Quantize the weights of `model` in place as planned. Return their changes.

    Raises:
        ModelError: If a weight contains NaN or infinity.
    """
    changes, codes = [], dict[int, Coded]()
    for weight, coded_weight, change in encoded_weights(plan, "quantize"):
        changes.append(change)
        if coded_weight is not None:
            codes[id(weight.variable)] = coded_weight.map(kept_at_rest)
    # Encode all weights first, so that an error leaves the model unchanged.
    replace_weights(model, plan, codes)
    return changes


def replace_weights(
    model: Model, plan: WeightPlan, codes: dict[int, Coded] | None = None
) -> None:
    """Replace the weights of `model` in place as planned.

    `codes` contains encoded weights by the id of the variable. Used entries are
    removed. Other weights are encoded from their variables.
    """
    by_block: dict[int, tuple[Any, list[WeightPlace]]] = {}
    for weight, place in plan:
        if isinstance(place, WeightPlace):
            by_block.setdefault(id(weight.block), (weight.block, []))[1].append(place)
    for block, places in by_block.values():
        to_quantized(block, places, codes)
    forget_float_weights(sublayers(model))


def encoded_weights(
    plan: WeightPlan, stage: str
) -> Iterator[tuple[Weight, Coded | None, WeightChange]]:
    """Yield each weight, its codes if it is quantized, and its change.

    The model is unchanged.
    """
    total = sum(w.nbytes for w, place in plan if isinstance(place, WeightPlace))
    progress = Progress(stage, total)
    for weight, place in plan:
        if isinstance(place, str):
            yield weight, None, account(weight, "quantize", place, changed=False)
            continue
        yield weight, *_encoded(weight, place)
        progress.add(weight.nbytes)


def _encoded(weight: Weight, place: WeightPlace) -> tuple[Coded, WeightChange]:
    values = finite(array_of(weight.variable), weight.path)
    slices = place.slices(values.shape)

    def encoded(part: tuple[slice, ...]) -> tuple[Coded, tuple[float, float]]:
        return place.encode_and_compare(values[part])

    several = in_order(encoded, slices) if len(slices) > 1 else map(encoded, slices)
    parts, sums = zip(*several, strict=True)
    coded_weight = place.coding.joined(parts, values.shape)
    ratio = decibels(*np.sum(sums, axis=0))
    detail = place.coding.describe(weight.variable.shape)
    if not values.any():
        detail += ", all zero"
    elif place.dynamic:
        detail += ", int8 inputs" + (", static" * (place.activation_scale is not None))
    after = place.coding.nbytes(weight.variable.shape)
    return coded_weight, account(
        weight, "quantize", detail, changed=True, after_bytes=after, sqnr_db=ratio
    )


def weight_plan(
    model: Model,
    config: "Quantize",
    exclude: Exclude = excludes_nothing,
    scales: Scales = NO_SCALES,
    inputs: ActivationScales = NO_ACTIVATION_SCALES,
) -> WeightPlan:
    """Plan the storage format of each weight of a model.

    `scales` are learned scales of weights, and `inputs` are known scales of layer
    inputs.

    Raises:
        ModelError: If no weight can be quantized.
        ConfigError: If a regular expression matches no weight.
    """
    plan = planned(model, config, exclude, scales, inputs)
    all_weights = [weight for weight, _ in plan]
    check_every_pattern_matches(
        model.name, all_weights, {"include": config.include, "exclude": config.exclude}
    )
    if not any(isinstance(place, WeightPlace) for _, place in plan):
        again = (
            " It is quantized already. Next: restore a float model with km.dequantize."
            if quantized_variables(model)
            else ""
        )
        if any(getattr(w.owner, "quantization_mode", None) for w in all_weights):
            again = " Keras has quantized it. Next: compress the float model."
        reason = f"none of its {len(all_weights)} weights is a float kernel or "
        reason += "embedding table."
        if any(why == _EXCLUDED and is_kernel(weight) for weight, why in plan):
            reason = "all float kernels and embedding tables are excluded."
        raise ModelError(
            f"The model {model.name!r} has nothing to quantize: {reason}{again}"
        )
    return plan


def planned(
    model: Model,
    config: "Quantize",
    exclude: Exclude = excludes_nothing,
    scales: Scales = NO_SCALES,
    inputs: ActivationScales = NO_ACTIVATION_SCALES,
) -> WeightPlan:
    """Return a `weight_plan` that may skip all weights."""
    all_weights = list(weights(model))
    block_bytes, total = largest_block(all_weights), sum(w.size for w in all_weights)
    holders = (v for w in all_weights for v in vars(w.owner).values())
    codes = {id(v.codes): v for v in holders if isinstance(v, QuantizedVariable)}
    return [
        (
            weight,
            _why_not(weight, config, codes.get(id(weight.variable)), exclude)
            or replace(
                _place(weight, _own_config(weight, config, total), block_bytes, inputs),
                closely=config.is_close,
                scales=scales.get(name_of(model, weight)) if scales else None,
            ),
        )
        for weight in all_weights
    ]


def _why_not(
    weight: Weight,
    config: "Quantize",
    codes: QuantizedVariable | None,
    exclude: Exclude,
) -> str | None:
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if codes is not None:
        return f"is {codes.coding.dtype} already"
    if not keras.backend.is_float_dtype(dtype) or config.dtype == dtype:
        return f"is {dtype} already"
    if weight.attribute is None and is_kernel(weight):
        return LISTED
    if exclude(weight) or matches(config.exclude, weight):
        return _EXCLUDED
    if is_kernel(weight):
        return None
    if not matches(config.include, weight):
        return NO_KERNEL if config.include else why_no_kernel(weight)
    if len(weight.variable.shape) < 2:
        return "has fewer than two axes"
    return LISTED if weight.attribute is None else None


def _own_config(weight: Weight, config: "Quantize", total: int) -> "Quantize":
    """Return the config of a weight in a model of `total` weights.

    Without a granularity, embedding tables with at most 2 % of the weights are int8:
    they need few bytes, and rounding of positions costs accuracy.
    """
    is_small = is_embedding(weight) and 50 * weight.size <= total
    is_int8 = config.granularity is None and is_small
    return replace(config, scheme="int8") if is_int8 else config


def _place(
    weight: Weight, config: "Quantize", block_bytes: int, inputs: ActivationScales
) -> WeightPlace:
    is_multiplied = weight.attribute == multiplied_weight(weight.owner)
    is_taken_apart = is_multiplied and is_product(weight.owner)
    blocks = 1
    if is_multiplied and (cut := block_axes(weight.owner)) is not None:
        most_blocks = math.ceil(4 * weight.size / block_bytes)
        blocks = min(most_blocks, weight.variable.shape[cut[0]])
    return WeightPlace(
        weight.index,
        str(weight.attribute),
        coding_of(config, weight),
        blocks,
        is_taken_apart and (config.is_dynamic or id(weight.variable) in inputs),
        inputs.get(id(weight.variable)) if is_taken_apart else None,
    )


def coding_of(config: "Quantize", weight: Weight) -> Coding:
    """Return the storage format of a weight.

    Without a granularity, matrices have equal groups of about 64. Convolutions have
    none, because LiteRT and ONNX have none there.
    """
    axes, size = tuple(sorted(reduced_axes(weight))), config.group_size or GROUP_SIZE
    if config.granularity is not None:
        return Coding(config.dtype, axes, config.granularity, size, config.symmetric)
    inputs = math.prod(weight.variable.shape[axis] for axis in axes)
    is_single = inputs <= _GROUP or is_convolution(weight)
    return Coding(
        config.dtype,
        axes,
        "channel" if is_single else "group",
        next((n for n in _EVEN_GROUPS if inputs % n == 0), _GROUP),
        config.symmetric,
        scale_dtype="bfloat16",
    )


_GROUP = 64
_EVEN_GROUPS = range(_GROUP, _GROUP // 2, -2)


def name_of(model: Model, weight: Weight) -> str:
    """Return the name of a weight, the same in all models with the same config.

    An example is `"dense/kernel"`. Names of outer models come first, and a layer inside
    a layer is identified by its index.
    """
    # A copy of a subclassed model may have a different name.
    place = () if weight.block is model else weight.place
    within = (str(weight.index),) if weight.index else ()
    own = weight.attribute or weight.variable.name
    return "/".join([*place, *within, own.lstrip("_")])


def largest_block(all_weights: list[Weight]) -> int:
    """Return the maximum number of bytes to dequantize at once.

    Dequantizing a large layer as a whole could take more memory than quantization
    saves.
    """
    total = 4 * sum(weight.size for weight in all_weights)
    return max(total // _BLOCKS, _LEAST_BLOCK_BYTES)


_EXCLUDED = "is excluded"
UNREAD = "has two or more axes, but is not known to be the kernel of its layer"
LISTED = "is in a list, where weights cannot be replaced"

_MOST, _NAMED = 0.1, 3


def why_no_kernel(weight: Weight) -> str:
    """Return why a weight that is not known to be a kernel is skipped."""
    axes = [size for size in weight.variable.shape if size > 1]
    return NO_KERNEL if len(axes) < 2 or "bias" in weight.variable.name else UNREAD


def warn_if_left_float(changes: Sequence[WeightChange]) -> None:
    """Warn if more than 10% of a model's bytes stay float unintentionally.

    Vectors, excluded weights and, with `include`, all other weights do not count.
    """
    model_bytes = sum({c.weight: c.before_bytes for c in reversed(changes)}.values())
    smaller_weights = {c.weight for c in changes if c.after_bytes < c.before_bytes}
    float_bytes = {
        change.weight: change.after_bytes
        for change in changes
        if change.detail in (UNREAD, LISTED) and change.weight not in smaller_weights
    }
    total = sum(float_bytes.values())
    if total <= _MOST * model_bytes:
        return
    largest = sorted(float_bytes, key=lambda weight: -float_bytes[weight])
    largest_names = [
        f"{name} ({format_bytes(float_bytes[name])})" for name in largest[:_NAMED]
    ]
    rest = f" and {len(float_bytes) - _NAMED} more" if len(float_bytes) > _NAMED else ""
    warnings.warn(
        f"{total / model_bytes:.0%} of the model's bytes stay float: "
        f"{', '.join(largest_names)}{rest}. Next: list the weights to quantize in "
        "include= of Quantize (their last axis must be the channel axis) and the "
        "weights to keep in exclude=. `changes` lists the reason for each weight.",
        KerasMemWarning,
        stacklevel=3,
    )
