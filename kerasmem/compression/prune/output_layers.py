"""The layers whose kernels make the outputs of a model."""

from typing import Any

import keras

from kerasmem.graph.kernels import is_depthwise, is_kernel
from kerasmem.graph.layers import Weight, sublayers
from kerasmem.graph.nodes import Trace, trace


def output_layers(model: Any, weights: list[Weight]) -> set[int]:
    """Return the ids of the layers that come last of those with a kernel.

    They are found by walking back from the outputs of the model. Of a model without a
    graph it is the last layer with a kernel that it lists. Where no other layer has a
    kernel, depthwise ones aside, there are none.

    Args:
        model: a built `keras.Model`.
        weights: all of its weights.
    """
    kernels = [weight for weight in weights if is_kernel(weight)]
    last = _last(model, {id(weight.owner) for weight in kernels})
    others = {id(weight.owner) for weight in kernels if not is_depthwise(weight)}
    return set() if last >= others else last


def _last(model: Any, with_kernel: set[int]) -> set[int]:
    found = trace(model, 1)
    if found is not None:
        return _makers(found, with_kernel)
    for layer in reversed(model.layers):
        inside = {id(each) for each in sublayers(layer)} & with_kernel
        if inside:
            return _last(layer, inside) if isinstance(layer, keras.Model) else inside
    return set()


def _makers(found: Trace, with_kernel: set[int]) -> set[int]:
    """Return the layers with a kernel that are met first on the way back."""
    makers = {id(x): call for call in found.calls for x in call.outputs}
    last: set[int] = set()
    waiting, seen = list(found.outputs), set()
    while waiting:
        tensor = waiting.pop()
        call = makers.get(id(tensor))
        if call is None or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        inside = {id(layer) for layer in _inside(call.operation)} & with_kernel
        last |= inside
        if not inside:
            waiting += call.inputs
    return last


def _inside(operation: Any) -> list[Any]:
    return sublayers(operation) if isinstance(operation, keras.layers.Layer) else []
