"""Equalizing layers: channels that are small here and large there become alike.

Between two layers with a ReLU, a channel may be divided by any positive number in the
first and multiplied with it in the second. Rounding with one scale for a whole kernel
then loses no channel.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.account import account
from kerasmem.compression.quantize.repair.kernels import (
    input_kernel,
    input_places,
    output_kernel,
    output_places,
)
from kerasmem.compression.quantize.repair.pairs import Pair, find_pairs, without_bound
from kerasmem.errors import ModelError
from kerasmem.graph.calls import trace
from kerasmem.graph.clone import compile_as
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

_SWEEPS, _STILL = 200, 1e-5
LARGEST = 2.0**20
"""A channel is scaled by at most this, and at least its inverse."""


@dataclass(frozen=True, eq=False)
class Side:
    """The channels of a pair along one kernel.

    Args:
        kernel: names the kernel.
        places: the channel at each place of its last two axes, broadcast.
    """

    kernel: int
    places: np.ndarray


@dataclass(frozen=True, eq=False)
class Link:
    """One kernel that makes channels, and those that take them.

    Args:
        maker: the kernel that makes them.
        takers: the kernels that take them.
        count: number of channels.
    """

    maker: Side
    takers: tuple[Side, ...]
    count: int


def balance(links: Sequence[Link], peaks: dict[int, np.ndarray]) -> list[np.ndarray]:
    """Return for each link what to multiply the takers of each channel with.

    The maker is divided by it. Then the largest entry of a channel is as large in the
    kernel that makes it as in those that take it, and along a chain of links in all of
    them. A channel of zeros, on either side, is left alone.

    Args:
        links: pairs; a kernel is the maker of one at most, and a taker of one at most.
        peaks: the largest absolute values of every kernel by its last two axes,
            float64; they become those of the scaled kernels.

    Example:
        >>> side = [Side(0, np.array([[0, 1]])), Side(1, np.array([[0], [1]]))]
        >>> peaks = {0: np.array([[4.0, 1.0]]), 1: np.array([[1.0], [9.0]])}
        >>> balance([Link(side[0], (side[1],), 2)], peaks)[0].round(3).tolist()
        [2.0, 0.333]
        >>> peaks[0].tolist(), peaks[1].tolist()
        ([[2.0, 3.0]], [[2.0], [3.0]])
    """
    totals = [np.ones(link.count) for link in links]
    for _ in range(_SWEEPS):
        moved = 0.0
        for number, link in enumerate(links):
            step = _step(link, peaks)
            bounded = np.clip(totals[number] * step, 1 / LARGEST, LARGEST)
            step = bounded / totals[number]
            totals[number] = bounded
            peaks[link.maker.kernel] = (
                peaks[link.maker.kernel] / step[link.maker.places]
            )
            for taker in link.takers:
                peaks[taker.kernel] = peaks[taker.kernel] * step[taker.places]
            moved = max(moved, float(np.abs(np.log(step)).max(initial=0.0)))
        if moved < _STILL:
            break
    return totals


def largest_by(places: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the largest of `values` for each of `count` channels, 0 for none.

    Args:
        places: the channel of each value, broadcast.
        values: at least 0.
        count: number of channels.
    """
    found = np.zeros(count)
    np.maximum.at(found, np.broadcast_to(places, values.shape).ravel(), values.ravel())
    return found


def _step(link: Link, peaks: dict[int, np.ndarray]) -> np.ndarray:
    made = largest_by(link.maker.places, peaks[link.maker.kernel], link.count)
    taken = np.zeros(link.count)
    for taker in link.takers:
        here = largest_by(taker.places, peaks[taker.kernel], link.count)
        taken = np.maximum(taken, here)
    both = (made > 0) & (taken > 0)
    return np.sqrt(np.where(both, made, 1.0)) / np.sqrt(np.where(both, taken, 1.0))


NAME = "equalize"


def equalize(model: Any) -> list[WeightChange]:
    """Scale the channels of `model` in place; what it computes stays.

    Returns:
        Every weight, changed or left alone and why.

    Raises:
        ModelError: if no two layers can be equalized, or weights are not finite.
    """
    pairs, reasons = _pairs(model)
    if not pairs:
        raise ModelError(
            f"The model {model.name!r} has no two layers to equalize. Next: fold its "
            "BatchNormalization first; a ReLU6 is in the way unless it is replaced. "
            f"Received: {_first(model, reasons)}."
        )
    everything = list(weights(model))
    _check_finite(everything, pairs)
    factors = _factors(pairs)
    values = [
        (weight.variable, _scaled(weight, factors[id(weight.variable)]))
        for weight in everything
        if id(weight.variable) in factors
    ]
    for variable, value in values:
        variable.assign(value)
    return [_told(weight, factors, reasons) for weight in everything]


def without_relu6(model: Any) -> Any:
    """Return a model with a ReLU for each ReLU6 that is between layers to equalize.

    It is `model` itself if there is none; else the one handed in is not touched.
    """
    pairs, _ = _pairs(model, relu6=True)
    on_the_way = [op for pair in pairs for op in (pair.maker, *pair.between)]
    bounded = {id(op) for op in on_the_way if without_bound(op) is not None}
    if not bounded:
        return model
    made = Rebuild(_Unbounded(bounded)).run(model)
    compile_as(made, model)
    return made


class _Unbounded(Rewrite):
    """A ReLU in the place of some ReLU6."""

    def __init__(self, bounded: set[int]) -> None:
        self._bounded = bounded

    def config(self, node: Any) -> dict[str, Any] | None:
        operation = node.operation
        return without_bound(operation) if id(operation) in self._bounded else None


def _pairs(model: Any, *, relu6: bool = False) -> tuple[list[Pair], dict[int, str]]:
    traced = trace(model, 1)
    if traced is None:
        raise ModelError(
            f"The calls of the model {model.name!r} are not known: its layers cannot "
            "be equalized. Expected: a Sequential or Functional model. Received: a "
            "subclassed one."
        )
    return find_pairs(traced, relu6=relu6)


def _check_finite(everything: list[Weight], pairs: list[Pair]) -> None:
    kernels = {id(output_kernel(pair.maker)) for pair in pairs}
    kernels |= {id(input_kernel(taker)) for pair in pairs for taker in pair.takers}
    for weight in everything:
        is_one = id(weight.variable) in kernels
        if is_one and not np.isfinite(_exact(weight.variable)).all():
            raise ModelError(
                "Weights with NaN or infinity cannot be equalized. Received: "
                f"{weight.path!r} with such entries."
            )


def _factors(pairs: list[Pair]) -> dict[int, np.ndarray]:
    """Return what to multiply variables with, by their id."""
    peaks: dict[int, np.ndarray] = {}
    links = [_link(pair, peaks) for pair in pairs]
    found: dict[int, np.ndarray] = {}

    def multiply(variable: Any, by: np.ndarray) -> None:
        found[id(variable)] = found.get(id(variable), np.ones(1)) * by

    for pair, link, factor in zip(pairs, links, balance(links, peaks), strict=True):
        multiply(output_kernel(pair.maker), 1 / factor[link.maker.places])
        if pair.maker.bias is not None:
            multiply(pair.maker.bias, 1 / factor)
        for taker, side in zip(pair.takers, link.takers, strict=True):
            multiply(input_kernel(taker), factor[side.places])
    return found


def _link(pair: Pair, peaks: dict[int, np.ndarray]) -> Link:
    places = output_places(pair.maker)
    count = int(places.max()) + 1
    takers = [
        Side(_noted(input_kernel(taker), peaks), input_places(taker) % count)
        for taker in pair.takers
    ]
    return Link(
        Side(_noted(output_kernel(pair.maker), peaks), places), tuple(takers), count
    )


def _noted(kernel: Any, peaks: dict[int, np.ndarray]) -> int:
    """Note the largest values of a kernel; return its name."""
    if id(kernel) not in peaks:
        values = np.abs(_exact(kernel))
        peaks[id(kernel)] = values.max(tuple(range(values.ndim - 2)))
    return id(kernel)


def _exact(variable: Any) -> np.ndarray:
    return to_numpy(variable).astype(np.float64)


def _scaled(weight: Weight, by: np.ndarray) -> np.ndarray:
    dtype = np.dtype(keras.backend.standardize_dtype(weight.variable.dtype))
    with np.errstate(over="ignore"):  # it is looked for below
        value = (_exact(weight.variable) * by).astype(dtype)
    if not np.isfinite(value.astype(np.float64)).all():
        raise ModelError(
            f"The weight {weight.path!r} cannot be equalized: it would be too large "
            f"for {dtype.name}, or it is not finite already."
        )
    return value


def _told(
    weight: Weight, factors: dict[int, np.ndarray], reasons: dict[int, str]
) -> WeightChange:
    changed = id(weight.variable) in factors
    if changed:
        by = factors[id(weight.variable)]
        detail = f"channels scaled by {by.min():.3g} to {by.max():.3g}"
    else:
        detail = reasons.get(
            id(weight.owner), "is next to no layer to equalize it with"
        )
    return account(weight, NAME, detail, changed=changed)


def _first(model: Any, reasons: dict[int, str]) -> str:
    told = [
        f"{weight.path} {reasons[id(weight.owner)]}"
        for weight in weights(model)
        if id(weight.owner) in reasons
    ]
    return "; ".join(told[:3]) or "no layer with a kernel"
