"""Rounding of kernels to minimize output errors on data, and AWQ scales.

Before rounding, AWQ multiplies the weights of an input by a power of its magnitude.
Reading divides by the same factor, so important weights lose little. The power
minimizes the output error of the layer.

Source of AWQ: Lin, Tang, Tang, Yang, Chen, Wang, Xiao, Dang, Gan and Han, "AWQ:
Activation-aware Weight Quantization for LLM Compression and Acceleration", 2023.

AdaRound (adaptive rounding) rounds each weight up or down to minimize the output error.

Rounding to nearest minimizes the error of each entry. Adaptive rounding minimizes the
error of the sum `w'x`, computed from second moments of the inputs x. The paper also
includes the following activation. Second moments do not contain enough information for
that, and every step would need all samples.

Source: Nagel, Amjad, van Baalen, Louizos and Blankevoort, "Up or Down? Adaptive
Rounding for Post-Training Quantization", 2020.

GPTQ (second-order rounding) compensates in later weights for the error of earlier
ones.

The rows of a kernel are rounded one by one, largest inputs first. The error of a row is
distributed over the remaining rows by the inverse second moments of the inputs. This
reduces the output error.

Source: Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training
Quantization for Generative Pre-trained Transformers", 2022.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from kerasmem.compression.account import sqnr_db
from kerasmem.compression.quantize.apply import WeightPlan
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.config import (
    ACTIVATION_AWARE,
    ADAPTIVE,
    AUTO,
    MIXED,
    NEAREST,
    SECOND_ORDER,
    Quantize,
)
from kerasmem.compression.quantize.layer import WeightPlace
from kerasmem.compression.quantize.math import LIMIT, finite
from kerasmem.compression.quantize.on_data.moments import (
    Moments,
    Sums,
    is_product_of_matrices,
    matrices,
    of_matrices,
)
from kerasmem.compression.quantize.on_data.passes import Passes
from kerasmem.errors import ModelError
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.values import to_numpy
from kerasmem.types import Dataset, Layer

_LARGEST = 4608
"""Maximum number of products per sum, which is the size of the moment matrix."""
_MOST_BITS = 8
"""Maximum number of bits of a code."""

_LOW, _HIGH = -0.1, 1.1
"""Ends of the stretched sigmoid, which is clipped to [0, 1] and reaches both ends."""

_STEPS, _RATE, _WARM_UP = 1000, 0.02, 0.2
_PENALTY_WEIGHT, _FIRST_POWER, _LAST_POWER = 0.3, 20.0, 2.0


def adapted_codes(
    moments: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    """Return adaptively rounded codes of a kernel in matrix form.

    No output has a larger squared error than with rounding to nearest. Zeros and the
    largest codes stay, because the largest codes determine the scale. `weights` are
    float64, and `steps` are the steps of their codes, both (groups, K, outputs).
    """
    moments = moments.settled
    exact = weights / steps
    nearest, down = np.clip(np.rint(exact), -limit, limit), np.floor(exact)
    target = moments.mixed @ weights
    noise = nearest * steps - weights
    usual = (noise * (moments.rounded @ noise)).sum(-2, keepdims=True)
    gradient_scale = 2 * steps / np.where(usual > 0, usual, 1.0)
    up = _relaxed(
        exact - down,
        lambda part: (
            gradient_scale * (moments.rounded @ ((down + part) * steps) - target)
        ),
    )
    keeps_nearest = (weights == 0) | (np.abs(nearest) == limit)
    codes = np.where(keeps_nearest, nearest, np.clip(down + (up > 0.5), -limit, limit))
    return moments.better(codes, nearest, (weights, steps))


def _relaxed(
    begin: np.ndarray, slope: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Minimize the error over fractions in [0, 1] that are driven towards 0 or 1.

    `slope` returns the gradient of the error.
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
    late = (step / _STEPS - _WARM_UP) / (1 - _WARM_UP)
    if late <= 0:
        return 0.0
    fall = 0.5 * (1 + np.cos(np.pi * late))
    power = _LAST_POWER + (_FIRST_POWER - _LAST_POWER) * fall
    side = 2 * part - 1
    return -2 * _PENALTY_WEIGHT * power * np.abs(side) ** (power - 1) * np.sign(side)


_DAMPING = 0.01
"""Fraction of the mean diagonal to add to the diagonal before inversion."""

_BLOCK = 64
"""Number of rows to round before the update of later rows."""


def second_order_codes(
    moments: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    """Return the codes of a kernel in matrix form.

    No output has a larger squared error than with rounding to nearest. Zeros stay.
    `weights` are float64 and `steps` are the steps of their codes, both (groups, K,
    outputs).
    """
    input_moments = moments.settled.rounded
    nearest = np.clip(np.rint(weights / steps), -limit, limit)
    codes = np.empty_like(nearest)
    parts = (input_moments, weights, steps)
    for group, own in enumerate(zip(*parts, strict=True)):
        codes[group] = _codes(*own, limit)
    return Moments(input_moments, input_moments, moments.rows).better(
        codes, nearest, (weights, steps)
    )


def _codes(
    rounded: np.ndarray, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    size, diagonal = len(rounded), np.diagonal(rounded)
    # Weights of an input that is always zero are rounded to nearest.
    damped_moments = rounded + np.diag(
        _DAMPING * diagonal.mean() + np.where(diagonal > 0, 0.0, 1.0)
    )
    order = np.argsort(-diagonal, kind="stable")
    # Reversed rows make the Cholesky factor upper triangular.
    moments_in_order = damped_moments[np.ix_(order[::-1], order[::-1])]
    upper = _inverse(np.linalg.cholesky(moments_in_order)[::-1, ::-1])
    remaining_weights, steps = weights[order], steps[order]
    zeros = remaining_weights == 0
    codes = np.empty_like(remaining_weights)
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        errors = np.empty_like(remaining_weights[start:end])
        for row in range(start, end):
            code = np.clip(np.rint(remaining_weights[row] / steps[row]), -limit, limit)
            codes[row] = np.where(zeros[row], 0, code)
            error = (remaining_weights[row] - codes[row] * steps[row]) / upper[row, row]
            remaining_weights[row + 1 : end] -= np.outer(
                upper[row, row + 1 : end], error
            )
            errors[row - start] = error
        remaining_weights[end:] -= upper[start:end, end:].T @ errors
    return codes[np.argsort(order)]


def _inverse(upper: np.ndarray) -> np.ndarray:
    half = len(upper) // 2
    if half < _BLOCK:
        return np.triu(np.linalg.inv(upper))
    first, last = _inverse(upper[:half, :half]), _inverse(upper[half:, half:])
    inverse = np.zeros_like(upper)
    inverse[:half, :half], inverse[half:, half:] = first, last
    inverse[:half, half:] = -first @ (upper[:half, half:] @ last)
    return inverse


Codes = Callable[[Moments, np.ndarray, np.ndarray, int], np.ndarray]


def _nearest_codes(
    _: Moments, weights: np.ndarray, steps: np.ndarray, limit: int
) -> np.ndarray:
    return np.clip(np.rint(weights / steps), -limit, limit)


_CODES: dict[str, Codes] = {
    NEAREST: _nearest_codes,
    ADAPTIVE: adapted_codes,
    SECOND_ORDER: second_order_codes,
    AUTO: second_order_codes,  # never worse than rounding to nearest
}
ROUNDED = {
    ADAPTIVE: "rounded adaptively",
    SECOND_ORDER: "rounded by GPTQ",
    AUTO: "rounded by GPTQ",
}
"""Description of a rounded weight by rounding method."""


def what_is_done(config: Quantize) -> str:
    """Return a description of the rounding and scaling on data."""
    scaling = "scaled by AWQ" if config.scales == ACTIVATION_AWARE else None
    return " and ".join(filter(None, (scaling, ROUNDED.get(config.rounding))))


def round_on_data(
    models: tuple[Any, Any], config: Quantize, plan: WeightPlan, data: Dataset
) -> tuple[dict[int, float | None], WeightPlan]:
    """Round the kernels of a copy in place to values that encoding leaves unchanged.

    Layers receive the outputs of rounded layers before them. Adaptive rounding fits the
    outputs of the float model. GPTQ does not, because it may move weights far and would
    fit the noise of few samples. Dense, EinsumDense and (depthwise) convolutions with
    at most 4,608 products per sum are rounded. Other layers are unchanged.

    Args:
        models: Model and copy.
        config: Scheme with symmetric integer codes.
        plan: Plan of the copy's weights.
        data: Samples in any form listed in `kerasmem.files.data`. The first 512 are
            used.

    Returns:
        Signal-to-noise ratios of rounded weights in dB, by the id of the variable in
        the model; and the plan with their scales.

    Raises:
        DataError: If the input of a layer is not finite.
        ModelError: If a weight is not finite, or no weight can be rounded and the
            scheme is not `"mixed"`.
    """
    original, model = models
    places: dict[int, WeightPlace] = {}
    for weight, place in plan:
        if isinstance(place, WeightPlace) and place.coding.bits <= _MOST_BITS:
            finite(to_numpy(weight.variable), weight.path)  # before anything changes
            places[id(weight.variable)] = place
    pairs = [
        (before, after)
        for before, after in zip(weights(original), weights(model), strict=True)
        if id(after.variable) in places and _is_rounded_so(after)
    ]
    if config.scheme == MIXED and not pairs:
        return {}, plan  # a large budget may keep all weights float
    ratios: dict[int, float | None] = {}
    layers = [(before.owner, after.owner) for before, after in pairs]
    if config.rounding != ADAPTIVE:
        original, layers = model, [(after, after) for _, after in layers]
    sums = Sums([after for _, after in layers])
    passes = Passes((original, model), layers, data)
    for number in chain.from_iterable(passes.turns(sums.add)):
        before, after = pairs[number]
        place, key = places[id(after.variable)], id(before.variable)
        ratios[key], place = _round(after, sums.pop(number), place, config)
        places[id(after.variable)] = place
    if not ratios:
        raise ModelError(
            f"The model {model.name!r} has no weight that can be "
            f"{what_is_done(config)}. Expected: a Dense, EinsumDense, Conv1D, Conv2D "
            "or depthwise convolution that is not excluded. "
            "Next: use rounding='nearest' and scales='max'."
        )
    return ratios, [(w, places.get(id(w.variable), place)) for w, place in plan]


def _is_rounded_so(weight: Weight) -> bool:
    owner = weight.owner
    if not is_product_of_matrices(owner) or weight.variable is not owner.kernel:
        return False
    return matrices(owner, np.empty(owner.kernel.shape, "int8")).shape[1] <= _LARGEST


def _round(
    weight: Weight, moments: Moments, place: WeightPlace, config: Quantize
) -> tuple[float | None, WeightPlace]:
    exact, layer = to_numpy(weight.variable).astype(np.float32), weight.owner
    places = _places(layer, exact, moments, place, config)
    values = matrices(layer, exact).astype(np.float64)
    candidates = []
    for each in places:
        coded_kernel, coding = each.encode(exact), each.coding
        limit = LIMIT >> (8 - coding.bits)
        steps = matrices(layer, coding.steps(exact, coded_kernel)).astype(np.float64)
        new_values = steps * _CODES[config.rounding](moments, values, steps, limit)
        error = moments.settled.error(new_values, values).sum() if places[1:] else 0.0
        candidates.append(
            (error, new_values, replace(each, scales=coded_kernel.scales))
        )
    _, best, place = min(candidates, key=lambda each: each[0])
    new_values = of_matrices(layer, best)
    weight.variable.assign(new_values)
    return sqnr_db(exact, new_values), place


def _places(
    layer: Layer,
    exact: np.ndarray,
    moments: Moments,
    place: WeightPlace,
    config: Quantize,
) -> list[WeightPlace]:
    places = [place]
    if config.takes_any_scales:
        places.append(replace(place, closely=True))
    if config.takes_input_scales:
        coding = replace(place.coding, by_input=True)
        scales = input_scales(layer, exact, coding, moments)
        if scales is not None:
            scaled_place = replace(place, coding=coding, input_scales=scales)
            # Input scales may increase the error of methods other than nearest.
            places = (
                [scaled_place]
                if config.rounding == NEAREST
                else [scaled_place, *places]
            )
    return places


_POWERS = np.arange(11) / 10
_LEAST = 1e-4
"""Minimum input magnitude relative to the largest one."""


def input_scales(
    layer: Layer, kernel: np.ndarray, coding: Coding, moments: Moments
) -> np.ndarray | None:
    """Return the input scales of a kernel, positive float32.

    Shape of the kernel, with 1 for axes that an output channel does not sum over. None
    if equal scales have the smallest error.
    """
    moments = moments.settled
    weights = matrices(layer, kernel).astype(np.float32)
    input_moments = moments.rounded.astype(np.float32)
    # Difference between the outputs for inputs of the float and the rounded model.
    missing = (moments.mixed - moments.rounded).astype(np.float32) @ weights

    def error(scales: np.ndarray) -> float:
        coded_kernel = coding.encode(kernel, input_scales=scales)
        noise = matrices(layer, coding.decoded(coded_kernel, kernel.shape)) - weights
        errors = noise * (input_moments @ noise - 2 * missing)
        return float(errors.sum(dtype=np.float64))

    sizes = _sizes(layer, weights.shape, coding, moments)
    power = min(_POWERS, key=lambda each: error(_scales(sizes, each)))
    return _scales(sizes, power) if power else None


def _sizes(
    layer: Layer, shape: tuple[int, ...], coding: Coding, moments: Moments
) -> np.ndarray:
    squares = np.einsum("gkk->gk", moments.rounded)[..., None]
    every = of_matrices(layer, np.broadcast_to(squares, shape))
    others = tuple(axis for axis in range(every.ndim) if axis not in coding.axes)
    sizes = np.sqrt(every.mean(others, keepdims=True))
    return np.maximum(sizes / max(sizes.max(), np.finfo(np.float64).tiny), _LEAST)


def _scales(sizes: np.ndarray, power: float) -> np.ndarray:
    scales = sizes**-power
    return (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)
