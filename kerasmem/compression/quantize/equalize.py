"""Cross-layer equalization of channel ranges.

Assume that only a ReLU separates two layers. Then a channel can be divided by a
positive factor in the first layer and multiplied by it in the second. Balanced channels
lose less in rounding with one scale per tensor.

Each channel gets one positive factor, so that both kernels have equal ranges.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from kerasmem.compression.account import account
from kerasmem.compression.quantize.kernels import (
    has_channels,
    input_kernel,
    input_places,
    is_einsum,
    output_axis,
    output_kernel,
    output_places,
)
from kerasmem.errors import ModelError
from kerasmem.graph.calls import Call, Trace, trace
from kerasmem.graph.clone import compile_as
from kerasmem.graph.layer_table import entry_of, kind
from kerasmem.graph.layers import Weight, readers, weights
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Layer, Model, Node, Operation, Tensor, Variable

NAME = "equalize"
_ACTIVATIONS = ("linear", "relu", "leaky_relu")

_SWEEPS, _STILL = 200, 1e-5
LARGEST = 2.0**20
"""Maximum scaling factor of a channel, and the inverse of the minimum."""


@dataclass(frozen=True, eq=False)
class Side:
    """Channels of a pair along one kernel. `places` contains their indices."""

    kernel: int
    places: np.ndarray


@dataclass(frozen=True, eq=False)
class ScalePair:
    """A kernel with output channels, and the kernels that read these channels."""

    maker: Side
    takers: tuple[Side, ...]
    count: int


def balance(
    links: Sequence[ScalePair], peaks: dict[int, np.ndarray]
) -> list[np.ndarray]:
    """Return the factors of the takers' channels for each link.

    The maker is divided by the same factors. All kernels along a chain of links then
    have the same largest entry per channel. A channel keeps factor 1 if it is zero in
    the maker or in all takers.

    Args:
        links: Pairs of kernels. A kernel is the maker of at most one pair, and a taker
            in at most one.
        peaks: Largest absolute values of every kernel over its last two axes, float64.
            Updated to the scaled kernels.

    Example:
        >>> side = [Side(0, np.array([[0, 1]])), Side(1, np.array([[0], [1]]))]
        >>> peaks = {0: np.array([[4.0, 1.0]]), 1: np.array([[1.0], [9.0]])}
        >>> balance([ScalePair(side[0], (side[1],), 2)], peaks)[0].round(3).tolist()
        [2.0, 0.333]
        >>> peaks[0].tolist(), peaks[1].tolist()
        ([[2.0, 3.0]], [[2.0], [3.0]])
    """
    totals = [np.ones(link.count) for link in links]
    for _ in range(_SWEEPS):
        largest_change = 0.0
        for number, link in enumerate(links):
            step = _balancing_step(link, peaks)
            new_total = np.clip(totals[number] * step, 1 / LARGEST, LARGEST)
            step = new_total / totals[number]
            totals[number] = new_total
            peaks[link.maker.kernel] = (
                peaks[link.maker.kernel] / step[link.maker.places]
            )
            for taker in link.takers:
                peaks[taker.kernel] = peaks[taker.kernel] * step[taker.places]
            largest_change = max(
                largest_change, float(np.abs(np.log(step)).max(initial=0.0))
            )
        if largest_change < _STILL:
            break
    return totals


def largest_by(places: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the largest of nonnegative `values` for each of `count` channels."""
    axes = tuple(axis for axis, length in enumerate(places.shape) if length == 1)
    largest = np.zeros(count)
    by_place = values.max(axes, keepdims=True, initial=0.0)  # fast for matrices
    np.maximum.at(largest, *map(np.ravel, np.broadcast_arrays(places, by_place)))
    return largest


def _balancing_step(link: ScalePair, peaks: dict[int, np.ndarray]) -> np.ndarray:
    maker_peaks = largest_by(link.maker.places, peaks[link.maker.kernel], link.count)
    taker_peaks = np.zeros(link.count)
    for taker in link.takers:
        here = largest_by(taker.places, peaks[taker.kernel], link.count)
        taker_peaks = np.maximum(taker_peaks, here)
    both = (maker_peaks > 0) & (taker_peaks > 0)
    return np.sqrt(np.where(both, maker_peaks, 1.0)) / np.sqrt(
        np.where(both, taker_peaks, 1.0)
    )


def lets_through(operation: Operation, *, relu6: bool = False) -> bool:
    """Return whether `f(s * x) == s * f(x)` for positive channel factors `s`.

    `operation` has no kernel. `relu6` ignores an upper bound, as in ReLU6.
    """
    entry = entry_of(operation)
    if entry.name == "layers.ReLU":
        has_bound = operation.max_value is not None
        return not operation.threshold and (relu6 or not has_bound)
    if entry.channels == "activation":
        return passes(operation.activation, relu6=relu6)
    return entry.homogeneous


def passes(activation: Any, *, relu6: bool = False) -> bool:
    """Return whether `lets_through` holds for the activation of a layer."""
    if activation is None:
        return True
    if isinstance(activation, keras.layers.Layer):
        return lets_through(activation, relu6=relu6)
    names = (*_ACTIVATIONS, "relu6") if relu6 else _ACTIVATIONS
    return any(activation is getattr(keras.activations, name) for name in names)


def without_bound(operation: Operation) -> dict[str, Any] | None:
    """Return the config change that replaces ReLU6 by ReLU, or None."""
    if entry_of(operation).name == "layers.ReLU":
        return {"max_value": None} if operation.max_value is not None else None
    activation = getattr(operation, "activation", None)
    if activation is keras.activations.relu6:
        return {"activation": "relu"}
    return None


@dataclass(frozen=True, eq=False)
class Pair:
    """A layer, the layers that read its channels, and the operations between them."""

    maker: Any
    takers: list[Any] = field(default_factory=list)
    between: list[Any] = field(default_factory=list)


class _NoWayError(Exception):
    """The path of a channel reaches an operation that blocks scaling."""


def find_pairs(
    model: Model, *, relu6: bool = False
) -> tuple[list[Pair], dict[int, str]]:
    """Return the pairs of a model, and the reason of each unpaired layer by its id.

    `relu6` treats ReLU6 as ReLU.

    Raises:
        ModelError: If the model has no graph.
    """
    calls = trace(model, 1)
    if calls is None:
        raise ModelError(
            f"The model {model.name!r} has no graph, so its layers cannot be "
            "equalized. Expected: a Sequential or Functional model. Received: a "
            "subclassed model."
        )
    way = _Way(calls, relu6, readers(model))
    pairs, reasons = [], {}
    for call in calls.calls:
        if not has_channels(call.operation):
            continue
        try:
            pairs.append(way.pair(call))
        except _NoWayError as stop:
            reasons[id(call.operation)] = str(stop)
    return pairs, reasons


class _Way:
    """Follows the channels of a layer."""

    def __init__(self, traced: Trace, relu6: bool, tied: dict[int, str]) -> None:  # noqa: FBT001
        self._relu6, self._tied = relu6, tied
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
            raise _NoWayError("has an activation that does not preserve scales")
        pair, output = Pair(layer), call.outputs[0]
        self._follow(output, output_axis(layer, len(output.shape)), pair)
        if not pair.takers:
            raise _NoWayError("is not followed by a layer with a kernel")
        return pair

    def _check_alone(self, layer: Layer) -> None:
        if self._counts[id(layer)] > 1:
            raise _NoWayError(
                f"needs scaling of {layer.name!r}, which is called in several places"
            )
        if any(id(weight) in self._tied for weight in layer.weights):
            raise _NoWayError(
                f"needs scaling of {layer.name!r}, whose weights another layer reads"
            )

    def _follow(self, x: Tensor, axis: int, pair: Pair) -> None:
        if id(x) in self._ends:
            raise _NoWayError("reaches an output of the model")
        for reader in self._readers[id(x)]:
            operation = reader.operation
            if has_channels(operation):
                self._check_alone(operation)
                if is_einsum(operation) or axis != output_axis(operation, len(x.shape)):
                    raise _NoWayError(f"feeds {operation.name!r} along another axis")
                pair.takers.append(operation)
            elif lets_through(operation, relu6=self._relu6):
                y = reader.outputs[0]
                pair.between.append(operation)
                self._follow(y, _behind(operation, x, y, axis), pair)
            else:
                raise _NoWayError(f"feeds {operation.name!r}, which blocks scaling")


def _behind(operation: Operation, x: Tensor, y: Tensor, axis: int) -> int:
    if kind(operation) == "layers.Flatten":
        # Keras moves the channels of `channels_first` to the last axis.
        first = operation.data_format == "channels_first"
        if axis != (1 if first else len(x.shape) - 1) or y.shape[1] is None:
            raise _NoWayError(f"feeds {operation.name!r} along another axis")
        return 1
    return axis if len(y.shape) == len(x.shape) else len(y.shape) - 1


def equalize(model: Model) -> list[WeightChange]:
    """Equalize the channels of `model` in place. Return its weight changes.

    Raises:
        ModelError: If no layers can be equalized, or a weight is not finite.
    """
    pairs, reasons = find_pairs(model)
    all_weights = list(weights(model))
    if not pairs:
        skipped_weights = [
            f"{weight.path} {reasons[id(weight.owner)]}"
            for weight in all_weights
            if id(weight.owner) in reasons
        ]
        raise ModelError(
            f"The model {model.name!r} has no two layers to equalize. "
            f"Received: {'; '.join(skipped_weights[:3]) or 'no layer with a kernel'}. "
            "Next: fold BatchNormalization first, or set replace_relu6=True for ReLU6."
        )
    factors = _factors(pairs, all_weights)
    new_values = [
        (weight.variable, _scaled(weight, factors[id(weight.variable)]))
        for weight in all_weights
        if id(weight.variable) in factors
    ]
    for variable, value in new_values:
        variable.assign(value)
    return [_change(weight, factors, reasons) for weight in all_weights]


def without_relu6(model: Model) -> Any:
    """Return a copy with ReLU in place of each ReLU6 between layers to equalize.

    Returns `model` itself if there is no such ReLU6.
    """
    pairs, _ = find_pairs(model, relu6=True)
    on_the_way = [op for pair in pairs for op in (pair.maker, *pair.between)]
    bounded_ids = {id(op) for op in on_the_way if without_bound(op) is not None}
    if not bounded_ids:
        return model
    rebuilt_model = Rebuild(_Unbounded(bounded_ids)).run(model)
    compile_as(rebuilt_model, model)
    return rebuilt_model


class _Unbounded(Rewrite):
    def __init__(self, bounded: set[int]) -> None:
        self._bounded = bounded

    def config(self, node: Node) -> dict[str, Any] | None:
        operation = node.operation
        return without_bound(operation) if id(operation) in self._bounded else None


def _factors(
    pairs: Sequence[Pair], all_weights: Sequence[Weight]
) -> dict[int, np.ndarray]:
    links = [_link(pair) for pair in pairs]
    kernels = {side.kernel for link in links for side in (link.maker, *link.takers)}
    weights_by_id = {id(weight.variable): weight for weight in all_weights}
    peaks = {kernel: _peaks(weights_by_id[kernel]) for kernel in kernels}
    factors: dict[int, np.ndarray] = {}

    def multiply(kernel: int, by: np.ndarray) -> None:
        factors[kernel] = factors.get(kernel, np.ones(1)) * by

    for pair, link, factor in zip(pairs, links, balance(links, peaks), strict=True):
        multiply(link.maker.kernel, 1 / factor[link.maker.places])
        if pair.maker.bias is not None:
            multiply(id(pair.maker.bias), 1 / factor)
        for side in link.takers:
            multiply(side.kernel, factor[side.places])
    return factors


def _link(pair: Pair) -> ScalePair:
    places = output_places(pair.maker)
    count = int(places.max()) + 1
    takers = [
        Side(id(input_kernel(taker)), input_places(taker) % count)
        for taker in pair.takers
    ]
    return ScalePair(Side(id(output_kernel(pair.maker)), places), tuple(takers), count)


def _peaks(weight: Weight) -> np.ndarray:
    values = np.abs(_exact(weight.variable))
    if not np.isfinite(values).all():
        raise ModelError(
            "Equalization needs finite weights. Received: NaN or infinity in "
            f"{weight.path!r}."
        )
    return values.max(tuple(range(values.ndim - 2)))


def _exact(variable: Variable) -> np.ndarray:
    return to_numpy(variable).astype(np.float64)


def _scaled(weight: Weight, by: np.ndarray) -> np.ndarray:
    dtype = np.dtype(keras.backend.standardize_dtype(weight.variable.dtype))
    with np.errstate(over="ignore"):  # checked below
        value = (_exact(weight.variable) * by).astype(dtype)
    if not np.isfinite(value.astype(np.float64)).all():
        raise ModelError(
            f"The weight {weight.path!r} cannot be equalized: its values are not "
            f"finite, or the scaled values exceed the range of {dtype.name}."
        )
    return value


def _change(
    weight: Weight, factors: dict[int, np.ndarray], reasons: dict[int, str]
) -> WeightChange:
    is_scaled = id(weight.variable) in factors
    if is_scaled:
        by = factors[id(weight.variable)]
        detail = f"channels scaled by {by.min():.3g} to {by.max():.3g}"
    else:
        alone = "has no neighboring layer to equalize"
        detail = reasons.get(id(weight.owner), alone)
    return account(weight, NAME, detail, changed=is_scaled)
