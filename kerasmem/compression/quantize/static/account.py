"""Weight changes of static int8 quantization: weights, float calls, output errors."""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.account import decibels
from kerasmem.compression.quantize.activations import flat_batches
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.config import Calibration
from kerasmem.compression.quantize.static.plan import StaticPlan
from kerasmem.graph.calls import Call
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model, Tensors


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
