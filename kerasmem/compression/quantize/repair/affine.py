"""What a layer multiplies with and adds, and how to scale and shift what it makes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.compression.quantize.repair.kernels import (
    is_einsum,
    output_kernel,
    per_output,
)
from kerasmem.graph.channels.arrays import axis_of
from kerasmem.graph.values import to_numpy


@dataclass(frozen=True, eq=False)
class Affine:
    """What a layer multiplies with and adds, as float64.

    Args:
        kernel: of the shape of the layer's kernel.
        bias: a single zero for none.
        bias_axes: the letters of an EinsumDense's bias, None for other layers.
    """

    kernel: np.ndarray
    bias: np.ndarray
    bias_axes: str | None = None


def affine_of(layer: Any) -> Affine:
    """Return what a layer of `has_channels` multiplies with and adds."""
    kernel = to_numpy(output_kernel(layer)).astype(np.float64)
    bias = np.zeros(1) if layer.bias is None else to_numpy(layer.bias)
    axes = getattr(layer, "bias_axes", None)
    return Affine(kernel, bias.astype(np.float64), axes)


def scaled_and_shifted(
    layer: Any,
    now: Affine,
    factors: tuple[np.ndarray, np.ndarray],
    place: tuple[int, int],
) -> Affine:
    """Return what makes `scale * y + shift` of the `y` that a layer makes.

    Args:
        layer: one of `has_channels`.
        now: what it multiplies with and adds.
        factors: scale and shift, one number each for every place along an axis.
        place: that axis of the output and its rank; `per_output` knows of it.
    """
    scale, shift = factors
    axis, rank = place
    kernel = now.kernel * per_output(layer, scale, axis, rank)
    if is_einsum(layer):
        return _with_letters(layer, kernel, now, factors, axis)
    return Affine(kernel, now.bias * scale + shift)


def _with_letters(
    layer: Any,
    kernel: np.ndarray,
    now: Affine,
    factors: tuple[np.ndarray, np.ndarray],
    axis: int,
) -> Affine:
    """Return an EinsumDense's bias, with the letter of `axis` among its axes."""
    output = layer.equation.replace(" ", "").split("->")[1]
    scale, shift = (axis_of(vector, axis, len(output)) for vector in factors)
    bias = now.bias * scale + shift
    letters = {output[axis], *(now.bias_axes or "")}
    axes = "".join(letter for letter in output if letter in letters)
    return Affine(kernel, bias.reshape(bias.shape[output.index(axes[0]) :]), axes)
