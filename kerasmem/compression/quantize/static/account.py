"""What became of every weight, of calls that stay float, and what layers lose."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.patching import LayerCall, observing
from kerasmem.compression.account import account as account_of
from kerasmem.compression.account import decibels, sqnr_db
from kerasmem.compression.quantize.activations import flat_batches
from kerasmem.compression.quantize.config import Calibration
from kerasmem.compression.quantize.kernels import is_separable
from kerasmem.compression.quantize.static.kinds import is_affine
from kerasmem.compression.quantize.static.plan import Plan
from kerasmem.compression.quantize.static.products import IntegerProduct
from kerasmem.graph.calls import Call
from kerasmem.graph.layers import Weight, listed_graph
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange

_FACTORS = "factors of a channel, int8"


@dataclass
class _Stored:
    """What layers of codes hold of a float weight, or of a layer without any.

    Args:
        detail: what it is.
        variables: those that hold it; scales and multipliers go with the kernel.
        product: the first layer that has its codes, None for a bias.
    """

    detail: str
    variables: list[Any] = field(default_factory=list)
    product: Any = None


def account(
    plan: Plan,
    layers: Mapping[str, Any],
    all_weights: Sequence[Weight],
    stored: Mapping[int, WeightChange],
) -> list[WeightChange]:
    """Return a change for every weight, and for calls of layers without any.

    The bytes after it add up to those of the new model's weights.

    Args:
        plan: what became of the calls of the float model.
        layers: the new layers by the names of calls.
        all_weights: the weights of the float model.
        stored: what became of those that are in the new model, by the ids of the
            variables that they were.
    """
    # Not from the layers: those that stay float have other weights by now.
    own: dict[int, dict[str, Any]] = defaultdict(dict)
    for weight in all_weights:
        own[id(weight.block)].setdefault(weight.variable.name, weight.variable)
    calls: dict[int, list[Call]] = defaultdict(list)
    codes: dict[int, _Stored] = {}
    for call in plan.calls.calls:
        calls[id(call.layer)].append(call)
        if isinstance(layers.get(call.name), IntegerProduct):
            codes_of_weights = _codes_of_weights(
                call, layers[call.name], own.get(id(call.layer), {})
            )
            for float_weight, found, variable in codes_of_weights:
                codes.setdefault(id(float_weight), found).variables.append(variable)
    changes = []
    for weight in all_weights:
        of_block = calls.get(id(weight.block), ())
        reasons = (plan.reasons.get(call.name) for call in of_block)
        why = next((each for each in reasons if each is not None), "is not used")
        of_float = stored.get(id(weight.variable))
        changes.append(
            _of_weight(weight, codes.get(id(weight.variable)), of_float, why)
        )
    for layer, each in calls.items():
        if layer not in own:
            changes += _of_bare_calls(plan, each, codes.get(layer))
    return changes


def _codes_of_weights(
    call: Call, layer: Any, own: Mapping[str, Any]
) -> Iterator[tuple[Any, _Stored, Any]]:
    """Yield every variable of a new layer behind the float weight that it holds.

    Args:
        call: what the layer computes.
        layer: the new layer.
        own: the weights of the float layer by name.
    """
    bias, detail = None, _FACTORS
    kernel = next(iter(own.values()), call.layer)
    if not is_affine(call.operation):
        kernel = own[_kernel_name(call)]
        bias = own["bias"] if call.operation.use_bias else None
        count = layer.channels
        detail = f"int8 with {count} scale{'s' * (count != 1)}, times int8"
    for variable in layer.variables:
        if bias is not None and variable is layer.bias:
            yield bias, _Stored("int32"), variable
        else:
            yield kernel, _Stored(detail, product=layer), variable


def _kernel_name(call: Call) -> str:
    """Return the name of the weight of a layer that a part of it multiplies with."""
    if not is_separable(call.layer):
        return "kernel"
    depthwise = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
    is_first = isinstance(call.operation, depthwise)
    return "depthwise_kernel" if is_first else "pointwise_kernel"


def _of_weight(
    weight: Weight, codes: _Stored | None, of_float: WeightChange | None, why: str
) -> WeightChange:
    """Return the change of a weight.

    Args:
        weight: it.
        codes: what layers of codes hold of it by itself.
        of_float: what became of it in layers that stay float.
        why: why some stay so.
    """
    if codes is None:
        if of_float is None:
            detail = f"in the {_FACTORS}"
            return account_of(weight, "quantize", detail, changed=True, after_bytes=0)
        if not of_float.changed:
            return account_of(weight, "quantize", f"stays float: {why}", changed=False)
        detail = f"{of_float.detail}, computed with floats: {why}"
        layer, path = weight.block.name, weight.path
        return replace(of_float, layer=layer, weight=path, detail=detail)
    after, detail, sqnr = sum(map(nbytes, codes.variables)), codes.detail, None
    values = to_numpy(weight.variable)
    if codes.product is not None and codes.detail != _FACTORS:
        sqnr = sqnr_db(values, codes.product.float_kernel().reshape(values.shape))
        detail += "" if values.any() else ", all zero"
    if of_float is not None:
        after += of_float.after_bytes
        detail += f"; in some calls computed with floats: {why}"
    return account_of(
        weight, "quantize", detail, changed=True, after_bytes=after, sqnr_db=sqnr
    )


def _of_bare_calls(
    plan: Plan, calls: Sequence[Call], codes: _Stored | None
) -> Iterable[WeightChange]:
    """Yield the changes for the calls of a layer that has no weights."""

    def change(call: Call, detail: str, after: int | None = None) -> WeightChange:
        changed = after is not None
        name, size = call.layer.name, after or 0
        return WeightChange(name, call.name, "quantize", changed, detail, 0, size)

    if codes is not None:
        yield change(calls[0], codes.detail, sum(map(nbytes, codes.variables)))
    for call in calls:
        if call.name in plan.reasons:
            yield change(call, f"stays float: {plan.reasons[call.name]}")


SAMPLES = Calibration(samples=128)
"""What to look at, and how many at a time."""


def output_sqnr_db(
    model: Any, plan: Plan, layers: Mapping[str, Any], integers: Any, data: Any
) -> dict[int, float | None]:
    """Return what layers make of samples beside what they lose, by the layer's id.

    Both models are given the samples, so that the figure, a ratio in dB, has in it what
    the layers before lost.

    Args:
        model: the float model.
        plan: what became of its calls.
        layers: the new layers by the names of calls.
        integers: the model that computes with codes.
        data: samples in any form that `kerasmem.files.data` lists; the first 128 are
            taken, batch by batch.
    """
    calls = [
        c for c in plan.calls.calls if isinstance(layers.get(c.name), IntegerProduct)
    ]
    call_of = {id(layers[call.name]): call for call in calls}
    sums: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(2))
    rounded: dict[str, tuple[Call, np.ndarray]] = {}

    def keep(seen: LayerCall) -> None:
        call = call_of[id(seen.layer)]
        tensor = plan.calls.names[plan.steps[call.name].output]
        rounded[tensor] = call, to_numpy(seen.outputs)

    def see(tensor: str, value: Any) -> None:
        if tensor in rounded:
            call, output = rounded.pop(tensor)
            exact, output = (
                to_numpy(value).astype(np.float64),
                output.astype(np.float64),
            )
            codes = layers[call.name].output_codes
            if codes is not None:
                output = codes.scale * (output - codes.zero_point)
            apart = exact - output
            sums[id(call.layer)] += np.square(exact).sum(), np.square(apart).sum()

    graph = listed_graph(integers)
    with current().inference():
        for batch in flat_batches(model, data, SAMPLES):
            inputs = [keras.ops.convert_to_tensor(x) for x in batch]
            with observing(map(layers.get, [c.name for c in calls]), outputs=keep):
                x = keras.tree.pack_sequence_as(graph.input, inputs)
                integers(x, training=False)
            plan.calls.run(inputs, see)
    return {layer: decibels(*both.tolist()) for layer, both in sums.items()}
