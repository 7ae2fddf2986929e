"""Layers whose channels can be scaled against each other.

Between them are operations that let a positive factor of a channel through as it is.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.compression.quantize.repair.kernels import (
    has_channels,
    is_einsum,
    output_axis,
)
from kerasmem.graph.calls import Call, Trace
from kerasmem.graph.layer_table import entry_of, kind

_ACTIVATIONS = ("linear", "relu", "leaky_relu")


def lets_through(operation: Any, *, relu6: bool = False) -> bool:
    """Return True if `f(s * x) == s * f(x)` for a positive `s` of each channel.

    Args:
        operation: a layer without a kernel, or an operation.
        relu6: whether a bound above, as of ReLU6, is to be overlooked.
    """
    entry = entry_of(operation)
    if entry.name == "layers.ReLU":
        bounded = operation.max_value is not None
        return not operation.threshold and (relu6 or not bounded)
    if entry.channels == "activation":
        return passes(operation.activation, relu6=relu6)
    return entry.homogeneous


def passes(activation: Any, *, relu6: bool = False) -> bool:
    """Return True for an activation of a layer that `lets_through` holds for."""
    if activation is None:
        return True
    if isinstance(activation, keras.layers.Layer):
        return lets_through(activation, relu6=relu6)
    names = (*_ACTIVATIONS, "relu6") if relu6 else _ACTIVATIONS
    return any(activation is getattr(keras.activations, name) for name in names)


def without_bound(operation: Any) -> dict[str, Any] | None:
    """Return what makes a ReLU of the ReLU6 in a layer's config, None without one."""
    if entry_of(operation).name == "layers.ReLU":
        return {"max_value": None} if operation.max_value is not None else None
    activation = getattr(operation, "activation", None)
    if activation is keras.activations.relu6:
        return {"activation": "relu"}
    return None


_FLATTEN = "layers.Flatten"


@dataclass(frozen=True, eq=False)
class Pair:
    """A layer that makes channels, and all that take them.

    Args:
        maker: the layer that makes them.
        takers: the layers that take them.
        between: the operations on the way.
    """

    maker: Any
    takers: tuple[Any, ...]
    between: tuple[Any, ...]


class _NoWayError(Exception):
    """A way that ends where channels cannot be scaled."""


def find_pairs(
    traced: Trace, *, relu6: bool = False
) -> tuple[list[Pair], dict[int, str]]:
    """Return the pairs of a model, and why a layer makes no pair, by its id.

    Args:
        traced: the calls of the model.
        relu6: whether a ReLU6 is taken for a ReLU.
    """
    way = _Way(traced, relu6)
    pairs, reasons = [], {}
    for call in traced.calls:
        if not has_channels(call.operation):
            continue
        try:
            pairs.append(way.pair(call))
        except _NoWayError as stop:
            reasons[id(call.operation)] = str(stop)
    return pairs, reasons


class _Way:
    """Where the channels of a layer go."""

    def __init__(self, traced: Trace, relu6: bool) -> None:  # noqa: FBT001
        self._relu6 = relu6
        self._ends = set(map(id, traced.outputs))
        self._counts = Counter(id(call.operation) for call in traced.calls)
        self._readers: dict[int, list[Call]] = defaultdict(list)
        for call in traced.calls:
            for tensor in call.inputs:
                self._readers[id(tensor)].append(call)

    def pair(self, call: Call) -> Pair:
        layer = call.operation
        self._check_alone(layer)
        if is_einsum(layer):
            raise _NoWayError("is an EinsumDense")
        if not passes(layer.activation, relu6=self._relu6):
            raise _NoWayError("has an activation that does not pass a scale on")
        rank = len(call.outputs[0].shape)
        takers: list[Any] = []
        between: list[Any] = []
        axis = output_axis(layer, rank)
        self._follow(call.outputs[0], axis, takers, between)
        if not takers:
            raise _NoWayError("goes into no layer with a kernel")
        return Pair(layer, tuple(takers), tuple(between))

    def _check_alone(self, layer: Any) -> None:
        if self._counts[id(layer)] > 1:
            raise _NoWayError(f"goes through {layer.name!r}, called in several places")

    def _follow(self, x: Any, axis: int, takers: list[Any], between: list[Any]) -> None:
        if id(x) in self._ends:
            raise _NoWayError("reaches an output of the model")
        for reader in self._readers[id(x)]:
            operation = reader.operation
            if has_channels(operation):
                self._check_alone(operation)
                if is_einsum(operation) or axis != output_axis(operation, len(x.shape)):
                    raise _NoWayError(
                        f"goes into {operation.name!r} along another axis"
                    )
                takers.append(operation)
            elif lets_through(operation, relu6=self._relu6):
                y = reader.outputs[0]
                between.append(operation)
                self._follow(y, _behind(operation, x, y, axis), takers, between)
            else:
                raise _NoWayError(f"goes into {operation.name!r}")


def _behind(operation: Any, x: Any, y: Any, axis: int) -> int:
    """Return the axis of channels behind an operation."""
    if kind(operation) == _FLATTEN:
        # Keras moves channels that come first behind the others.
        first = operation.data_format == "channels_first"
        if axis != (1 if first else len(x.shape) - 1) or y.shape[1] is None:
            raise _NoWayError(f"goes into {operation.name!r} along another axis")
        return 1
    return axis if len(y.shape) == len(x.shape) else len(y.shape) - 1
