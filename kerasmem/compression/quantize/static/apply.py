"""Static int8 quantization: kernels, activation ranges, weight changes, errors."""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.patching import LayerCall
from kerasmem.compression.account import check_every_pattern_matches, decibels, matches
from kerasmem.compression.quantize.activations import Observer, calibrate, flat_batches
from kerasmem.compression.quantize.apply import ActivationScales, planned, store
from kerasmem.compression.quantize.aware.insertion import Rounding
from kerasmem.compression.quantize.aware.places import RoundingPoint, places
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.config import Calibration, Quantize
from kerasmem.compression.quantize.fold import fold_batch_norm
from kerasmem.compression.quantize.layer import round_inside, to_quantized
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.products import is_product
from kerasmem.compression.quantize.repair import correct_biases
from kerasmem.compression.quantize.static.mostly_float import warn_if_mostly_float
from kerasmem.compression.quantize.static.partition import plan_of
from kerasmem.compression.quantize.static.plan import Ranges, StaticPlan, staying_float
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import check_data, input_batches
from kerasmem.graph.calls import Call
from kerasmem.graph.clone import clone
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.layers import listed_graph, weights
from kerasmem.graph.observe import observe
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model, Tensors

_NO_RANGES: Ranges = MappingProxyType({})


def account(
    plan: StaticPlan,
    blocks: Sequence[Any],
    stored: Sequence[WeightChange],
    ratios: Mapping[int, float | None],
) -> list[WeightChange]:
    """Return the changes of all weights, and of calls without weights that stay float.

    `blocks` are the float layers of the weights. `ratios` come from `output_sqnr_db`.
    """
    calls: dict[int, list[Call]] = defaultdict(list)
    for call in plan.calls.calls:
        calls[id(call.layer)].append(call)
    changes = [
        _of_weight(change, *_kinds(plan, calls[id(block)]), ratios.get(id(block)))
        for block, change in zip(blocks, stored, strict=True)
    ]
    with_weights = set(map(id, blocks))
    bare = [each for layer, each in calls.items() if layer not in with_weights]
    return changes + [change for each in bare for change in _of_bare(plan, each)]


def _kinds(plan: StaticPlan, calls: Sequence[Call]) -> tuple[bool, str | None]:
    if not calls:
        return False, "is not used"
    # For a split layer, only the parts with weights count.
    parts = [c for c in calls if c.operation is c.layer or c.operation.weights]
    reasons = [plan.reasons.get(call.name) for call in parts]
    why = next((reason for reason in reasons if reason is not None), None)
    return None in reasons, why


def _of_weight(
    change: WeightChange,
    is_coded: bool,  # noqa: FBT001
    why: str | None,
    ratio: float | None,
) -> WeightChange:
    detail = change.detail
    if not change.changed:
        return change if is_coded else replace(change, detail=f"stays float: {why}")
    if not is_coded:
        detail = f"{detail}, computed with floats: {why}"
    elif not detail.endswith("all zero"):
        detail += ", int8 inputs"
    if is_coded and why is not None:
        detail += f"; in some calls computed with floats: {why}"
    return replace(change, detail=detail, output_sqnr_db=ratio)


def _of_bare(plan: StaticPlan, calls: Sequence[Call]) -> Iterator[WeightChange]:
    for call in calls:
        if call.name in plan.reasons:
            detail = f"stays float: {plan.reasons[call.name]}"
            names = call.layer.name, call.name, "quantize"
            yield WeightChange(
                *names, changed=False, detail=detail, before_bytes=0, after_bytes=0
            )


def _rounded_outputs(plan: StaticPlan, call: Call) -> list[str]:
    step = plan.steps.get(call.name)
    return call.output_names if step is None else [plan.calls.names[step.output]]


SAMPLES = Calibration(samples=128)
"""Number of samples and batch size for output errors."""


def output_sqnr_db(
    plan: StaticPlan, model: Model, rounded: Any, layers: Container[int], data: Dataset
) -> dict[int, float | None]:
    """Return the signal-to-noise ratio of the outputs of `layers`, by their id, in dB.

    Both models run on the first 128 samples, so the noise includes that from earlier
    layers. For a layer with a fused ReLU, the output of the ReLU is measured.
    """
    calls, rounded_calls = flatten(model), flatten(rounded)
    layer_of_name = {
        name: id(call.layer)
        for call in calls.calls
        if id(call.layer) in layers
        for name in _rounded_outputs(plan, call)
    }
    names = {name: name for name in layer_of_name}  # keys: names after rounding
    for call in rounded_calls.calls:
        before = [rounded_calls.names[number] for number in call.inputs]
        if isinstance(call.operation, FakeQuantize) and before[0] in names:
            names[call.name] = before[0]
    sums: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(2))
    with current().inference():
        for batch in flat_batches(model, data, SAMPLES):
            inputs = [keras.ops.convert_to_tensor(x) for x in batch]
            outputs: dict[str, np.ndarray] = {}

            def keep(name: str, value: Any, outputs: Tensors = outputs) -> None:
                if name in names:  # a rounded tensor replaces the one before it
                    outputs[names[name]] = to_numpy(value)

            def compare(name: str, value: Any, outputs: Tensors = outputs) -> None:
                if name in layer_of_name:
                    exact = to_numpy(value).astype(np.float64)
                    apart = exact - outputs.pop(name)
                    both = np.square(exact).sum(), np.square(apart).sum()
                    sums[layer_of_name[name]] += both

            rounded_calls.run(inputs, keep)
            calls.run(inputs, compare)
    return {layer: decibels(*both.tolist()) for layer, both in sums.items()}


def quantize_static(
    model: Model, config: Quantize, data: Dataset, known: Ranges = _NO_RANGES
) -> tuple[Any, list[WeightChange]]:
    """Return a copy with int8 kernels and rounded activations, and its weight changes.

    The steps are batch normalization folding, optional bias correction, calibration and
    insertion of a `FakeQuantize` after every tensor that LiteRT supports in int8. A
    calibration adds the ranges that `known` lacks.

    Raises:
        ConfigError: If a range is missing and there is no data, or a regular expression
            matches no weight.
        DataError: If the data does not fit the model, or contains NaN or infinity.
        ModelError: If the model has no graph, nothing to quantize, or NaN or infinity
            in its weights.

    Warns:
        KerasMemWarning: Before the calibration, if less than half of the
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
    if not known:  # otherwise `km.quantization_aware` has warned already
        warn_if_mostly_float(plan)
    ranges = _ranges(folded_model, plan, config, data, known)
    if not known:  # otherwise keep the plan used in training
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
    """Return the positions with their ranges and with all tensors that share them.

    A tensor that shares a range without being rounded belongs to the first position.
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
    """Raise `ConfigError` if there are neither samples nor ranges from training."""
    if data is None and (config.bias_correction or not known):
        raise _no_data(config)


def _no_data(config: Quantize, missing: Sequence[str] = ()) -> ConfigError:
    lacking = f", ranges without {', '.join(map(repr, missing[:3]))}" if missing else ""
    return ConfigError(
        f"The scheme {config.scheme!r} needs samples to calibrate activation ranges. "
        f"Received: data=None{lacking}"
        f"{', bias_correction=True' * config.bias_correction}. "
        "Next: pass data=x (--data on the command line)."
    )


def _check_graph(model: Model) -> None:
    if listed_graph(model) is None:
        raise ModelError(
            "Activations can only be rounded between the layers of a graph. Expected: "
            "a Sequential or Functional model whose config lists its layers. Received: "
            f"model={model.name!r}, of class {type(model).__name__}, without layers in "
            "its config. Next: use Quantize('int8-dynamic')."
        )


def activation_scales(
    model: Model, config: Quantize, data: Dataset
) -> ActivationScales:
    """Return the input scale of each product that the samples reach.

    For models without a graph of layers. Each product rounds its inputs to a calibrated
    range and multiplies integers. Its outputs are float.

    Raises:
        ConfigError: If there are no samples.
        DataError: If the samples do not fit the model, or a value is not finite.
    """
    check_has_ranges(config, data, {})
    check_data(model, data)
    calibration = config.calibration or Calibration()
    kernels = {
        id(weight.owner): weight
        for weight in weights(model)
        if weight.attribute == "_kernel"
        and is_product(weight.owner)
        and not matches(config.exclude, weight)
    }
    observers: dict[int, Observer] = {}

    def see(call: LayerCall) -> None:
        weight = kernels[id(call.layer)]
        observer = observers.setdefault(id(weight.variable), Observer(calibration))
        observer.add(weight.path, call.x)

    batches = input_batches(data, calibration.samples, calibration.batch_size)
    owners = [weight.owner for weight in kernels.values()]
    observe(model, batches, owners, inputs=see)
    ends = {key: observer.range("") for key, observer in observers.items()}
    largest = {key: max(-each.low, each.high) for key, each in ends.items()}
    return {key: (most or 1.0) / LIMIT for key, most in largest.items()}
