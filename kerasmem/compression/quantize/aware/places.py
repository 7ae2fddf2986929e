"""Where a forward pass of integers rounds its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.compression.quantize.activations.calls import Call, Calls, flatten
from kerasmem.compression.quantize.repair.fold_plan import fold_plan
from kerasmem.compression.quantize.static.base import RELU
from kerasmem.compression.quantize.static.kinds import is_relu, kind_of
from kerasmem.compression.quantize.static.plan import Plan
from kerasmem.compression.quantize.static.planning import Stays
from kerasmem.compression.quantize.static.split import activation_of
from kerasmem.compression.quantize.static.worth import plan_of

_L = keras.layers
_CONVOLUTIONS = (
    *(_L.Conv1D, _L.Conv2D, _L.Conv3D, _L.DepthwiseConv1D, _L.DepthwiseConv2D),
    *(_L.Conv1DTranspose, _L.Conv2DTranspose, _L.Conv3DTranspose),
    *(_L.SeparableConv1D, _L.SeparableConv2D),
)
_PRODUCTS = (*_CONVOLUTIONS, _L.Dense, _L.EinsumDense)
SEPARABLE = (_L.SeparableConv1D, _L.SeparableConv2D)
_MAX_POOLS = (_L.MaxPooling1D, _L.MaxPooling2D, _L.MaxPooling3D)
_MOVES = (
    *_MAX_POOLS,
    *(_L.GlobalMaxPooling1D, _L.GlobalMaxPooling2D, _L.GlobalMaxPooling3D),
    *(_L.Flatten, _L.Reshape, _L.Permute, _L.RepeatVector, _L.Identity, _L.Masking),
    *(_L.Dropout, _L.SpatialDropout1D, _L.SpatialDropout2D, _L.SpatialDropout3D),
    *(_L.ZeroPadding1D, _L.ZeroPadding2D, _L.ZeroPadding3D),
    *(_L.Cropping1D, _L.Cropping2D, _L.Cropping3D, _L.UpSampling1D, _L.UpSampling3D),
    _L.ActivityRegularization,
)
"""Layers that only move values, or leave some out: the codes pass through."""

_MOVING_OPERATIONS = {
    *("Reshape", "Transpose", "GetItem", "Squeeze", "ExpandDims", "Flip", "Identity"),
    *("BroadcastTo", "Repeat", "Tile", "Roll", "Take", "MaxPool", "StopGradient"),
    *("Swapaxes", "Moveaxis", "Ravel"),
}
_NEVER_NEGATIVE = {
    *("relu", "relu6", "sigmoid", "hard_sigmoid", "softmax", "softplus"),
    "exponential",
}
INSIDE = "depthwise"
"""What follows the name of a separable convolution, for the tensor within it."""
LINEAR = "linear"
"""What follows the name of a Dense, for what goes into the activation within it."""


def has_linear(layer: Any) -> bool:
    """Return whether integers have codes for what an activation within a Dense takes.

    A rectifier runs as one with the product.
    """
    if type(layer) is not _L.Dense:
        return False
    return activation_of(layer) not in (None, *RELU)


@dataclass(frozen=True)
class Place:
    """What range belongs to a place.

    Args:
        tensor: the tensor whose range it is, named as by `walk`.
        never_negative: whether its lower end is 0 by the nature of the call.
        folded: the product whose output the tensor is once its BatchNormalization, the
            call of this name, is folded; None for any other.
    """

    tensor: str
    never_negative: bool = False
    folded: str | None = None


def places(model: Any, static: Stays | None = None) -> dict[str, Place]:
    """Return by the name of a tensor where it is rounded, in the order of the calls.

    They are the floats among the model's inputs and the outputs of its calls, what
    separable convolutions make within and, for `static`, what activations within a
    Dense take, without those that integers never hold: a product before a
    BatchNormalization that it takes up, or before its rectifier, which run as one with
    it, and what only moves values. Where all that reads a tensor is a maximum pooling,
    its maxima are rounded: there are fewer, and they are the same.

    Args:
        model: a model with a graph; models within it are opened.
        static: only those that `Quantize("int8-static")` rounds, where this tells of
            layers that stay float; None for all.

    Raises:
        ModelError: if it rounds none.
    """
    calls = flatten(model)
    folded = _folded(model, calls)
    inputs = [calls.names[n] for n in calls.inputs if _is_float(calls.tensors[n])]
    found = {name: Place(name) for name in inputs}
    for call in calls.calls:
        if type(call.operation) in SEPARABLE:
            within = f"{call.name}/{INSIDE}"
            found[within] = Place(within)
        if static is not None and has_linear(call.operation):
            before = f"{call.name}/{LINEAR}"
            found[before] = Place(before)
        found |= _outputs(call, _only_reader(call, calls), calls, folded)
    if static is None:
        return found
    # They are folded before anything stays float.
    norms = {id(call.operation) for call in calls.calls if call.name in folded}
    plan = plan_of(model, lambda layer: None if id(layer) in norms else static(layer))
    return _coded(found, plan)


def _coded(found: Mapping[str, Place], plan: Plan) -> dict[str, Place]:
    """Return the places that have codes, those behind moves of floats included."""
    kept = {at: place for at, place in found.items() if place.tensor in plan.coded}
    for call in plan.calls.calls:
        if call.name in plan.reasons and _moves(call.operation):
            for name in plan.coded.intersection(call.output_names):
                kept.setdefault(name, Place(name))
    return kept


def _folded(model: Any, calls: Calls) -> dict[str, str]:
    """Return calls of products by those of the BatchNormalizations they take up."""
    taken = {id(n) for t in fold_plan(model).takers.values() for n in t.norms}
    found: dict[str, str] = {}
    for call in calls.calls:
        reader = _only_reader(call, calls)
        if reader and id(reader.operation) in taken:
            found[reader.name] = found.get(call.name, call.name)
    return found


def _outputs(
    call: Call, reader: Call | None, calls: Calls, folded: Mapping[str, str]
) -> dict[str, Place]:
    """Return where the outputs of a call are rounded.

    Args:
        call: it.
        reader: the one call that reads them, None if it is not one.
        calls: all of them.
        folded: what `_folded` returns.
    """
    if _moves(call.operation) or (reader and _runs_as_one(call, reader, folded)):
        return {}
    names = call.output_names
    at = reader.output_names if reader and _is_max_pool(reader) else names
    never = _never_negative(call.operation)
    return {
        place: Place(name, never, folded.get(call.name))
        for place, name, number in zip(at, names, call.outputs, strict=True)
        if _is_float(calls.tensors[number])
    }


def _only_reader(call: Call, calls: Calls) -> Call | None:
    """Return the one call that reads what `call` makes, None if it is not one."""
    if len(call.outputs) != 1 or call.outputs[0] in calls.outputs:
        return None
    readers = [c for c in calls.calls for i in c.inputs if i == call.outputs[0]]
    return readers[0] if len(readers) == 1 else None


def _moves(operation: Any) -> bool:
    return isinstance(operation, _MOVES) or (
        not isinstance(operation, _L.Layer)
        and type(operation).__name__ in _MOVING_OPERATIONS
    )


def _is_max_pool(call: Call) -> bool:
    operation = call.operation
    return isinstance(operation, _MAX_POOLS) or type(operation).__name__ == "MaxPool"


def _runs_as_one(call: Call, reader: Call, folded: Mapping[str, str]) -> bool:
    """Return whether integers run both calls without the tensor between them."""
    if reader.name in folded:
        return True
    return is_relu(reader.operation) and _takes_relu(call.operation)


def _takes_relu(operation: Any) -> bool:
    """Return whether integers run a rectifier behind it as a part of it."""
    if isinstance(operation, _PRODUCTS):
        return _activation(operation) == "linear"
    found = kind_of(operation)
    return found is not None and found.fuses_relu


def _never_negative(operation: Any) -> bool:
    is_product = isinstance(operation, _PRODUCTS)
    name = _activation(operation) if is_product else _function(operation)
    return name in _NEVER_NEGATIVE


def _function(operation: Any) -> str:
    """Return the name of the function of its input that an operation is."""
    if isinstance(operation, _L.ReLU):
        is_plain = not operation.negative_slope and not operation.threshold
        return "relu" if is_plain else ""
    if isinstance(operation, _L.Softmax):
        return "softmax"
    if isinstance(operation, _L.Activation):
        return _activation(operation)
    return "" if isinstance(operation, _L.Layer) else type(operation).__name__.lower()


def _activation(layer: Any) -> str:
    return getattr(layer.activation or keras.activations.linear, "__name__", "")


def _is_float(tensor: Any) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))
