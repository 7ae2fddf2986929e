"""Adaptive rounding: each weight up or down, for least error in what comes out.

A layer that multiplies inputs x by weights w gives w'x. Rounding to nearest makes each
entry's error small; here the error of the sum counts, which second moments of x tell,
summed up over samples that stream by. An activation that follows is not looked at,
which the paper does: moments do not tell of it, and without them every step would go
through all samples.

Source: Nagel, Amjad, van Baalen, Louizos and Blankevoort, "Up or Down? Adaptive
Rounding for Post-Training Quantization", 2020.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.backends.patching import LayerCall
from kerasmem.compression.account import sqnr_db
from kerasmem.compression.quantize.apply import Exclude, weight_plan
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.layer import Place
from kerasmem.compression.quantize.math import LIMIT, finite
from kerasmem.errors import DataError, ModelError
from kerasmem.files.data import input_batches
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.layers import blocks
from kerasmem.graph.observe import observe
from kerasmem.graph.values import to_numpy

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_LARGEST = 4608
"""So many products may a sum have: its moments are a matrix of that size."""


def round_adaptively(
    original: Any, model: Any, config: "Quantize", exclude: Exclude, data: Any
) -> dict[int, float | None]:
    """Round kernels of `model` in place, to values that storing leaves as they are.

    Every layer is given what the rounded layers before it make, and is to make what the
    float model makes there. Dense, convolutions and depthwise ones by themselves are
    rounded so, of at most 4,608 products in a sum; the others are not touched.

    Args:
        original: a model.
        model: a copy of it.
        config: how its weights are to be stored, symmetric and in 4 or 8 bits.
        exclude: tells of weights to leave alone.
        data: samples in any form that `kerasmem.files.data` lists; the first 512 count.

    Returns:
        What is left of the weights that were rounded, in dB, by the ids of the
        variables of `original`.

    Raises:
        DataError: if what goes into a layer is not finite.
        ModelError: if there is nothing to quantize or to round so, or a weight is not
            finite.
    """
    codings: dict[int, Coding] = {}
    for weight, place in weight_plan(model, config, exclude):
        if isinstance(place, Place):
            finite(to_numpy(weight.variable), weight.path)  # before anything changes
            codings[id(weight.variable)] = place.coding
    ratios: dict[int, float | None] = {}
    for before, after in zip(blocks(original), blocks(model), strict=True):
        if not is_product_of_matrices(after) or id(after.kernel) not in codings:
            continue
        exact = to_numpy(after.kernel).astype(np.float32)
        as_matrices = matrices(after, exact).astype(np.float64)
        if as_matrices.shape[1] > _LARGEST:
            continue
        coding = codings[id(after.kernel)]
        steps = matrices(after, coding.steps(exact)).astype(np.float64)
        moments = moments_of((original, model), (before, after), data)
        if moments is None:
            continue
        limit = LIMIT >> (8 - coding.bits)
        codes = adapted_codes(moments, as_matrices, steps, limit)
        rounded = of_matrices(after, codes * steps)
        after.kernel.assign(rounded)
        ratios[id(before.kernel)] = sqnr_db(exact, rounded)
    if not ratios:
        raise ModelError(
            f"The model {original.name!r} has no weight to round adaptively. Expected: "
            "a Dense, a convolution of one or two dimensions or a depthwise one, by "
            "itself and not excluded. Next: rounding='nearest'."
        )
    return ratios


@dataclass(frozen=True)
class Moments:
    """Second moments of what a layer multiplies with its kernel, by group.

    Args:
        rounded: of the inputs that rounded layers before it give, (groups, K, K).
        mixed: of these with those of the float model, which stand behind.
        rows: how many they were taken of.
    """

    rounded: np.ndarray
    mixed: np.ndarray
    rows: int

    def settled(self) -> "Moments":
        """Return them with less of what inputs have in common, where rows are few.

        Few rows leave many sums free that new ones will not.
        """
        size = self.rounded.shape[-1]
        doubt = size / (size + self.rows)
        alone = doubt * _diagonal(self.rounded)
        rounded, mixed = ((1 - doubt) * x for x in (self.rounded, self.mixed))
        for each in (rounded, mixed):
            _diagonal(each)[...] += alone
        return Moments(rounded, mixed, self.rows)


def is_product_of_matrices(layer: Any) -> bool:
    """Return True for a layer that `columns` knows, one of Keras's own."""
    entry, is_own = entry_of(layer), not getattr(layer, "lora_enabled", False)
    is_one = entry.kernel in ("dense", "convolution", "depthwise")
    return is_one and entry.integer is not None and is_own


def columns(layer: Any, x: Any) -> np.ndarray:
    """Return what a layer multiplies with its kernel, float32 (groups, rows, K).

    Args:
        layer: one of `is_product_of_matrices`.
        x: a tensor that goes in.
    """
    ops = keras.ops
    x = ops.cast(x, "float32")
    if entry_of(layer).kernel == "dense":
        return to_numpy(x).reshape(1, -1, x.shape[-1])
    if layer.data_format == "channels_first":
        x = ops.moveaxis(x, 1, -1)
    window, padding = layer.kernel_size, layer.padding
    if padding == "causal":
        before = layer.dilation_rate[0] * (window[0] - 1)
        x, padding = ops.pad(x, [(0, 0), (before, 0), (0, 0)]), "valid"
    # One filter for each place in the window, which gives what stands there.
    count, channels = math.prod(window), x.shape[-1]
    places = np.eye(count, dtype="float32").reshape(*window, 1, count)
    found = to_numpy(
        ops.depthwise_conv(
            x,
            ops.convert_to_tensor(np.repeat(places, channels, axis=-2)),
            layer.strides,
            padding,
            "channels_last",
            layer.dilation_rate,
        )
    )
    groups = _groups(layer)
    found = found.reshape(-1, groups, channels // groups, count)
    return found.transpose(1, 0, 3, 2).reshape(groups, -1, count * (channels // groups))


def matrices(layer: Any, kernel: np.ndarray) -> np.ndarray:
    """Return the kernel of a layer as matrices, (groups, K, outputs)."""
    if entry_of(layer).kernel == "depthwise":
        return np.moveaxis(kernel.reshape(-1, *kernel.shape[-2:]), 1, 0)
    rows = kernel.reshape(-1, _groups(layer), kernel.shape[-1] // _groups(layer))
    return np.moveaxis(rows, 1, 0)


def of_matrices(layer: Any, as_matrices: np.ndarray) -> np.ndarray:
    """Return the kernel that `matrices` made `as_matrices` of."""
    return np.moveaxis(as_matrices, 0, 1).reshape(layer.kernel.shape)


def _groups(layer: Any) -> int:
    """Return how many sets of channels have nothing to do with each other."""
    if entry_of(layer).kernel == "depthwise":
        return layer.kernel.shape[-2]
    return getattr(layer, "groups", 1)


_SAMPLES, _BATCH_SIZE = 512, 16
_MOST_ROWS = 64
"""So many places of a sample are looked at, of a convolution's output."""


def moments_of(
    models: tuple[Any, Any], layers: tuple[Any, Any], data: Any
) -> Moments | None:
    """Return the moments of a layer's inputs, None if it is not called.

    Args:
        models: the float model, and a copy with rounded weights before the layer.
        layers: the layer in one and in the other.
        data: samples in any form that `kerasmem.files.data` lists; the first 512 count.

    Raises:
        DataError: if they are not finite.
    """
    rounded, mixed, rows = None, None, 0
    random = np.random.default_rng(0)
    exact: deque[Any] = deque()

    def see(call: LayerCall) -> None:
        nonlocal rounded, mixed, rows
        if call.layer is layers[0]:
            exact.append(call.x)
            return
        behind, before = _rows(layers[0], (exact.popleft(), call.x), random)
        rows += before.shape[1]
        turned = before.swapaxes(-1, -2)
        own, both = turned @ before, turned @ behind
        rounded = own.astype(np.float64) if rounded is None else rounded + own
        mixed = both.astype(np.float64) if mixed is None else mixed + both

    def run(batch: Any, *, training: bool) -> None:
        for model in models:
            model(batch, training=training)

    observe(run, input_batches(data, _SAMPLES, _BATCH_SIZE), layers, inputs=see)
    if rounded is None or mixed is None:
        return None
    if not (np.isfinite(rounded).all() and np.isfinite(mixed).all()):
        raise DataError(
            f"The layer {layers[0].name!r} is given NaN or infinity. Next: look at the "
            "data first, then at the weights of the layers before it."
        )
    return Moments(rounded, mixed, rows)


def _rows(
    layer: Any, pair: tuple[Any, Any], random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return some rows of what `columns` returns of two tensors, at the same places.

    A convolution reads each number many times: all rows of a batch may take gigabytes,
    so only those of one sample are there at once.
    """
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    arrays = [to_numpy(x).astype(np.float32) for x in pair]
    for sample in range(len(arrays[0])):
        every = [columns(layer, x[sample : sample + 1]) for x in arrays]
        count = every[0].shape[1]
        places = np.arange(count)
        if count > _MOST_ROWS:
            places = random.choice(count, _MOST_ROWS, replace=False)
        for parts, part in zip(found, every, strict=True):
            parts.append(part[:, places])
    behind, before = (np.concatenate(parts, axis=1) for parts in found)
    return behind, before


_LOW, _HIGH = -0.1, 1.1
"""Ends of the sigmoid before it is cut off at 0 and 1, so that it reaches both."""

_STEPS, _RATE, _WARM_UP = 1000, 0.02, 0.2
_WEIGHT, _FIRST_POWER, _LAST_POWER = 0.3, 20.0, 2.0


def _diagonal(matrices: np.ndarray) -> np.ndarray:
    """Return a view of the diagonals of matrices."""
    return np.einsum("gkk->gk", matrices)


def adapted_codes(
    moments: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    """Return codes, each the next below or above its weight, of a kernel as matrices.

    No output has a larger squared error than with codes to nearest. Zeros stay, and so
    do the largest codes, which the scale hangs on.

    Args:
        moments: of the inputs.
        weights: float64, (groups, K, outputs).
        steps: what the codes are multiplied with, of the same shape.
        limit: the largest code.
    """
    moments = moments.settled()
    exact = weights / steps
    nearest, down = np.clip(np.rint(exact), -limit, limit), np.floor(exact)
    target = moments.mixed @ weights

    def error(codes: np.ndarray) -> np.ndarray:
        values = codes * steps
        return (values * (moments.rounded @ values - 2 * target)).sum(-2, keepdims=True)

    noise = nearest * steps - weights
    usual = (noise * (moments.rounded @ noise)).sum(-2, keepdims=True)
    scaled = 2 * steps / np.where(usual > 0, usual, 1.0)
    up = _relaxed(
        exact - down,
        lambda part: scaled * (moments.rounded @ ((down + part) * steps) - target),
    )
    pinned = (weights == 0) | (np.abs(nearest) == limit)
    codes = np.where(pinned, nearest, np.clip(down + (up > 0.5), -limit, limit))
    return np.where(error(codes) < error(nearest), codes, nearest)


def _relaxed(
    begin: np.ndarray, slope: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return parts in [0, 1] with least error, driven to 0 or 1 as time goes on.

    Args:
        begin: the first ones.
        slope: returns the derivative of the error by each part.
    """
    inside = (np.clip(begin, 1e-4, 1 - 1e-4) - _LOW) / (_HIGH - _LOW)
    x = np.log(inside / (1 - inside))
    first, second, part = np.zeros_like(x), np.zeros_like(x), begin
    for step in range(1, _STEPS + 1):
        sigmoid = 1 / (1 + np.exp(-x))
        part = np.clip(_LOW + (_HIGH - _LOW) * sigmoid, 0, 1)
        moves = (part > 0) & (part < 1)
        inner = (_HIGH - _LOW) * sigmoid * (1 - sigmoid)
        gradient = (slope(part) + _towards_ends(part, step)) * inner * moves
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * np.square(gradient)
        mean = first / (1 - 0.9**step)
        x -= _RATE * mean / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return part


def _towards_ends(part: np.ndarray, step: int) -> np.ndarray | float:
    """Return the derivative of what it costs to be neither 0 nor 1."""
    late = (step / _STEPS - _WARM_UP) / (1 - _WARM_UP)
    if late <= 0:
        return 0.0
    fall = 0.5 * (1 + np.cos(np.pi * late))
    power = _LAST_POWER + (_FIRST_POWER - _LAST_POWER) * fall
    side = 2 * part - 1
    return -2 * _WEIGHT * power * np.abs(side) ** (power - 1) * np.sign(side)
