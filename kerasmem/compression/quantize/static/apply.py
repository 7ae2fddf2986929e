"""Weights and activations in int8: codes of kernels, fixed ranges of activations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kerasmem.compression.account import check_every_pattern_matches, matches
from kerasmem.compression.quantize.activations import calibrate
from kerasmem.compression.quantize.apply import planned, store
from kerasmem.compression.quantize.aware.insertion import Rounding
from kerasmem.compression.quantize.aware.places import RoundingPoint, places
from kerasmem.compression.quantize.config import Quantize
from kerasmem.compression.quantize.fold import fold_batch_norm
from kerasmem.compression.quantize.layer import round_inside, to_quantized
from kerasmem.compression.quantize.repair import correct_biases
from kerasmem.compression.quantize.static.account import account, output_sqnr_db
from kerasmem.compression.quantize.static.mostly_float import warn_if_mostly_float
from kerasmem.compression.quantize.static.partition import plan_of
from kerasmem.compression.quantize.static.plan import Ranges, StaticPlan, staying_float
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import listed_graph, weights
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model

_NO_RANGES: Ranges = MappingProxyType({})


def quantize_static(
    model: Model, config: Quantize, data: Dataset, known: Ranges = _NO_RANGES
) -> tuple[Any, list[WeightChange]]:
    """Return a model with kernels in int8 and rounded activations, and its account.

    BatchNormalization is folded first, biases are corrected if that is asked for, then
    the ranges are taken from samples. Every tensor with a form in int8 is rounded to
    the 256 codes of its range by a `FakeQuantize`.

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
    check_every_pattern_matches(model.name, all_weights, {"exclude": config.exclude})
    excluded_places = {w.place for w in all_weights if matches(config.exclude, w)}
    folded_model, folds = fold_batch_norm(model)
    if config.bias_correction:
        folded_model = clone(model) if folded_model is model else folded_model
        correct_biases(folded_model, config, data, lambda w: w.place in excluded_places)
    stays = staying_float(
        w for w in weights(folded_model) if w.place in excluded_places
    )
    plan = plan_of(folded_model, stays)
    if not known:  # else the training of `km.quantization_aware` has warned
        warn_if_mostly_float(plan)
    ranges = _ranges(folded_model, plan, config, data, known)
    if not known:  # else the training has rounded what this plan rounds
        plan = plan_of(folded_model, stays, ranges)
    rewrite = Rounding(folded_model, _fixed(places(folded_model, plan), plan, ranges))
    rounded_model, pairs = rewrite.run(folded_model)
    original = {id(new): old for old, new in pairs}
    int8 = Quantize("int8", granularity=config.granularity)
    kernels = planned(
        rounded_model, int8, lambda w: stays(original[id(w.block)]) is not None
    )
    blocks = [original[id(weight.block)] for weight, _ in kernels]
    stored_changes = store(rounded_model, kernels)
    for old, new in pairs:
        if id(old) in rewrite.inside:
            to_quantized(new, [])
            round_inside(new, rewrite.inside[id(old)])
    ratios = {}
    if data is not None:
        changed_blocks = {
            id(b) for b, c in zip(blocks, stored_changes, strict=True) if c.changed
        }
        ratios = output_sqnr_db(plan, folded_model, rounded_model, changed_blocks, data)
    changes = account(plan, blocks, stored_changes, ratios)
    return rounded_model, [change for change in folds if change.changed] + changes


def _fixed(
    points: Mapping[str, RoundingPoint], plan: StaticPlan, ranges: Ranges
) -> dict[str, RoundingPoint]:
    """Return the places with their ranges, and the names of all tensors in one.

    Tensors that have the range of others without being rounded themselves, such as
    maxima, belong to the first place with that range.
    """
    ends, point_names = plan.ranges(ranges), {each.tensor for each in points.values()}
    others = {
        next((name for name in group if name in point_names), ""): tuple(
            name for name in group if name not in point_names
        )
        for group in plan.groups()
    }
    return {
        at: replace(place, ends=ends[place.tensor], others=others.get(place.tensor, ()))
        for at, place in points.items()
    }


def _ranges(
    model: Model, plan: StaticPlan, config: Quantize, data: Dataset, known: Ranges
) -> Ranges:
    point_names = {place.tensor for place in places(model, plan).values()}
    missing = [name for name in plan.needed(point_names) if name not in known]
    if not missing:
        return known
    if data is None:
        raise _no_data(config, missing)
    ranges = calibrate(model, data, config.calibration, calls=plan.calls)
    return {each.tensor: (each.low, each.high) for each in ranges} | dict(known)


def check_has_ranges(config: Quantize, data: Dataset, known: Ranges) -> None:
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


def _check_graph(model: Model) -> None:
    if listed_graph(model) is None:
        raise ModelError(
            "Activations are rounded between the layers of a model. Expected: a "
            "Sequential or Functional model whose config lists its layers. Received: "
            f"model={model.name!r}, of class {type(model).__name__}, whose config "
            "does not. Next: Quantize('int8-dynamic')."
        )
