"""A float model into one that computes with int8 codes."""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kerasmem.compression.account import (
    check_every_pattern_matches,
    matches,
)
from kerasmem.compression.quantize.activations import calibrate
from kerasmem.compression.quantize.apply import planned, store
from kerasmem.compression.quantize.config import Quantize
from kerasmem.compression.quantize.fold import fold_batch_norm
from kerasmem.compression.quantize.repair import correct_biases
from kerasmem.compression.quantize.static.account import account, output_sqnr_db
from kerasmem.compression.quantize.static.build import Build
from kerasmem.compression.quantize.static.mostly_float import warn_if_mostly_float
from kerasmem.compression.quantize.static.partition import plan_of
from kerasmem.compression.quantize.static.plan import (
    Plan,
    Ranges,
    Stays,
    named_as_in,
    staying_float,
)
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import listed_graph, weights
from kerasmem.records import WeightChange

_NO_RANGES: Ranges = MappingProxyType({})


def quantize_static(
    model: Any, config: Quantize, data: Any, known: Ranges = _NO_RANGES
) -> tuple[Any, list[WeightChange]]:
    """Return a model that computes with int8 codes, and what became of every weight.

    BatchNormalization is folded first, biases are corrected if that is asked for, then
    the ranges are taken from samples.

    Args:
        model: a built model with a graph; it is not touched.
        config: the scheme, and how to calibrate.
        data: samples in any of the forms that `kerasmem.files.data` lists; None if
            all ranges are known.
        known: ranges that a training has found; a calibration finds what they lack.

    Raises:
        ConfigError: if there is neither data nor all ranges, or a regular expression
            means no weight.
        DataError: if the data does not fit the model, or holds NaN or infinity.
        ModelError: if the model has no graph, nothing to quantize, or NaN or infinity
            in its weights.

    Warns:
        KerasMemWarning: before the calibration, if less than half of the
            multiplications would have int8 inputs.
    """
    _check_graph(model)
    check_has_ranges(config, data, known)
    all_weights = list(weights(model))
    check_every_pattern_matches(model, all_weights, {"exclude": config.exclude})
    places = {w.place for w in all_weights if matches(config.exclude, w)}
    folded, folds = fold_batch_norm(model)
    # Layers that stay float go into the new model.
    folded = clone(model) if folded is model else folded
    if config.bias_correction:
        correct_biases(folded, config, data, lambda w: w.place in places)
    stays = staying_float(w for w in weights(folded) if w.place in places)
    plan = plan_of(folded, stays)
    if not known:  # else the training of `km.quantization_aware` has warned
        warn_if_mostly_float(plan)
    ranges = _ranges(folded, plan, config, data, known)
    integers, changes = _quantized(folded, ranges, config.granularity, stays, data)
    return integers, [change for change in folds if change.changed] + changes


def integer_model(
    model: Any,
    ranges: Ranges,
    granularity: str = "channel",
    stays: Stays = lambda _: None,
) -> tuple[Any, list[WeightChange]]:
    """Return a model that computes with int8 codes in given ranges.

    Args:
        model: a built model with a graph, best without BatchNormalization.
        ranges: of all tensors that get codes; a wider name such as `"dense/linear"`
            is that of what Dense gives before an activation other than ReLU.
        granularity: `"channel"` or `"tensor"`, what shares a scale of a kernel.
        stays: tells why a layer is to stay float, None if it need not.

    Raises:
        ConfigError: if a range is missing, or is none.
        ModelError: if the model has no graph, nothing to quantize, or NaN or infinity
            in its weights.
    """
    _check_graph(model)
    own = clone(model)  # layers that stay float go into the new model
    return _quantized(own, named_as_in(own, model, ranges), granularity, stays)


def _ranges(
    model: Any, plan: Plan, config: Quantize, data: Any, known: Ranges
) -> Ranges:
    """Return the ranges that are known, with those that they lack by calibration."""
    missing = [name for name in plan.needed() if name not in known]
    if not missing:
        return known
    if data is None:
        raise _no_data(config, missing)
    seen = calibrate(model, data, config.calibration, calls=plan.calls)
    return {each.tensor: (each.low, each.high) for each in seen} | dict(known)


def check_has_ranges(config: Quantize, data: Any, known: Ranges) -> None:
    """Raise if there are neither samples nor ranges that a training has found."""
    if data is None and (config.bias_correction or not known):
        raise _no_data(config)


def _no_data(config: Quantize, missing: Sequence[str] = ()) -> ConfigError:
    lacking = f", ranges without {', '.join(map(repr, missing[:3]))}" if missing else ""
    return ConfigError(
        f"The scheme {config.scheme!r} takes the ranges of activations from samples: "
        "give data=x (--data on the command line). Received: data=None"
        f"{lacking}{', bias_correction=True' * config.bias_correction}."
    )


def _quantized(
    model: Any, ranges: Ranges, granularity: str, stays: Stays, data: Any = None
) -> tuple[Any, list[WeightChange]]:
    """Return the model of integers and what became of every weight.

    Layers that go on computing with floats have their kernels stored in int8.

    Args:
        model: the float model; layers of it that stay float go into the new one.
        ranges: of all tensors that get codes.
        granularity: what shares a scale of a kernel.
        stays: tells why a layer is to stay as it is, None if it need not.
        data: samples to measure on what integer layers lose; None not to.
    """
    plan = plan_of(model, stays, ranges)
    build = Build(model, plan, plan.codes(ranges), granularity)
    integers, layers = build.run(), build.layers
    # While the layers that stay float have the weights of the float model.
    ratios = {}
    if data is not None:
        ratios = output_sqnr_db(model, plan, layers, integers, data)
    all_weights = list(weights(model))
    floats = {id(w.variable) for w in all_weights if stays(w.block) is not None}
    int8 = Quantize("int8", granularity=granularity)
    plan_of_floats = planned(integers, int8, lambda w: id(w.variable) in floats)
    variables = [id(weight.variable) for weight, _ in plan_of_floats]
    stored = dict(zip(variables, store(integers, plan_of_floats), strict=True))
    changes = account(plan, layers, all_weights, stored)
    for place, (weight, change) in enumerate(zip(all_weights, changes, strict=False)):
        if change.changed:
            ratio = ratios.get(id(weight.block))
            changes[place] = replace(change, output_sqnr_db=ratio)
    return integers, changes


def _check_graph(model: Any) -> None:
    if listed_graph(model) is None:
        raise ModelError(
            "A model of integers is made of a model's layers, one by one. Expected: a "
            "Sequential or Functional model whose config lists its layers. Received: "
            f"model={model.name!r}, of class {type(model).__name__}, whose config "
            "does not. Next: Quantize('int8-dynamic')."
        )
