"""Second moments of layer inputs on a stream of samples.

Products are batched by group: (groups, rows, K) times (groups, K, outputs).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np

from kerasmem.errors import DataError
from kerasmem.graph.kernels import einsum_parts
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Tensor


@dataclass(frozen=True)
class Moments:
    """Second moments of the inputs of a kernel, by group.

    Args:
        rounded: Moments of inputs from rounded layers, (groups, K, K).
        mixed: Moments of these inputs with the inputs in the float model.
        rows: Number of rows.
    """

    rounded: np.ndarray
    mixed: np.ndarray
    rows: int

    @cached_property
    def settled(self) -> "Moments":
        """Moments with off-diagonal entries shrunk for small numbers of rows.

        Few rows do not determine all correlations.
        """
        size = self.rounded.shape[-1]
        doubt = size / (size + self.rows)
        alone = doubt * _diagonal(self.rounded)
        input_moments, mixed_moments = (
            (1 - doubt) * x for x in (self.rounded, self.mixed)
        )
        for each in (input_moments, mixed_moments):
            _diagonal(each)[...] += alone
        return Moments(input_moments, mixed_moments, self.rows)

    def error(self, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the squared error per output up to a constant, (groups, 1, outputs).

        `values` are rounded weights and `weights` float weights, (groups, K, outputs).
        """
        return self._error(values, self.mixed @ weights)

    def _error(self, values: np.ndarray, target: np.ndarray) -> np.ndarray:
        return (values * (self.rounded @ values - 2 * target)).sum(-2, keepdims=True)

    def better(
        self, codes: np.ndarray, others: np.ndarray, parts: tuple[np.ndarray, ...]
    ) -> np.ndarray:
        """Return the codes with the smaller error for each output, `others` for ties.

        `parts` are the float weights and the steps of the codes.
        """
        weights, steps = parts
        target = self.mixed @ weights
        errors = (self._error(each * steps, target) for each in (codes, others))
        return np.where(next(errors) < next(errors), codes, others)


def _diagonal(matrices: np.ndarray) -> np.ndarray:
    return np.einsum("gkk->gk", matrices)


def is_product_of_matrices(layer: Layer) -> bool:
    """Return whether `columns` supports a layer."""
    entry = entry_of(layer)
    if getattr(layer, "lora_enabled", False):
        return False
    if entry.kernel == "einsum":
        return _axes(layer).is_product
    # TensorFlow does not support depthwise products with unequal strides everywhere.
    is_even = len({*getattr(layer, "strides", (1,))}) == 1
    is_one = entry.kernel in ("dense", "convolution", "depthwise")
    return is_one and is_even and entry.integer is not None


@dataclass(frozen=True)
class _Axes:
    """Letters of an EinsumDense equation by their role."""

    given: str
    kernel: str
    output: str

    @property
    def shared(self) -> str:
        """Letters of inputs, kernel and output: batch axes of the product."""
        return "".join(x for x in self.kernel if x in self.given and x in self.output)

    @property
    def summed(self) -> str:
        """Letters of inputs and kernel only."""
        return "".join(
            x for x in self.kernel if x in self.given and x not in self.output
        )

    @property
    def free(self) -> str:
        """Letters of the kernel that the inputs lack."""
        return "".join(x for x in self.kernel if x not in self.given)

    @property
    def is_product(self) -> bool:
        """Whether some letters are summed and all others are in the output."""
        letters = set(self.given) - set(self.summed) | set(self.free)
        return bool(self.summed) and letters == set(self.output)

    @property
    def order(self) -> list[int]:
        """Kernel axes in the order of the matrix form."""
        return [self.kernel.index(x) for x in self.shared + self.summed + self.free]


def _axes(layer: Layer) -> _Axes:
    return _Axes(*einsum_parts(layer.equation))


def columns(layer: Layer, x: Tensor) -> np.ndarray:
    """Return the inputs of a layer in matrix form, float32 (groups, rows, K)."""
    ops = keras.ops
    x = ops.cast(x, "float32")
    kind = entry_of(layer).kernel
    if kind == "dense":
        return to_numpy(x).reshape(1, -1, x.shape[-1])
    if kind == "einsum":
        return _einsum_columns(layer, to_numpy(x))
    if layer.data_format == "channels_first":
        x = ops.moveaxis(x, 1, -1)
    window, padding = layer.kernel_size, layer.padding
    if padding == "causal":
        before = layer.dilation_rate[0] * (window[0] - 1)
        x, padding = ops.pad(x, [(0, 0), (before, 0), (0, 0)]), "valid"
    # One filter per window position returns the value at that position.
    count, channels = math.prod(window), x.shape[-1]
    places = np.eye(count, dtype="float32").reshape(*window, 1, count)
    windows = to_numpy(
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
    windows = windows.reshape(-1, groups, channels // groups, count)
    return windows.transpose(1, 0, 3, 2).reshape(
        groups, -1, count * (channels // groups)
    )


def _einsum_columns(layer: Layer, x: np.ndarray) -> np.ndarray:
    axes = _axes(layer)
    dots = "." * (x.ndim - len(axes.given.replace("...", "")))
    input_letters = axes.given.replace("...", dots)
    shared_axes, sum_axes = (
        [input_letters.index(y) for y in each] for each in (axes.shared, axes.summed)
    )
    rows = [axis for axis in range(x.ndim) if axis not in (*shared_axes, *sum_axes)]
    groups, length = (
        math.prod(x.shape[a] for a in each) for each in (shared_axes, sum_axes)
    )
    return x.transpose(*shared_axes, *rows, *sum_axes).reshape(groups, -1, length)


def matrices(layer: Layer, kernel: np.ndarray) -> np.ndarray:
    """Return the kernel of a layer in matrix form, (groups, K, outputs)."""
    kind = entry_of(layer).kernel
    if kind == "depthwise":
        return np.moveaxis(kernel.reshape(-1, *kernel.shape[-2:]), 1, 0)
    if kind == "einsum":
        axes = _axes(layer)
        sizes = dict(zip(axes.kernel, kernel.shape, strict=True))
        parts = (axes.shared, axes.summed, axes.free)
        shape = [math.prod(sizes[x] for x in part) for part in parts]
        return kernel.transpose(axes.order).reshape(shape)
    rows = kernel.reshape(-1, _groups(layer), kernel.shape[-1] // _groups(layer))
    return np.moveaxis(rows, 1, 0)


def of_matrices(layer: Layer, as_matrices: np.ndarray) -> np.ndarray:
    """Return a kernel from its matrix form. Inverse of `matrices`."""
    shape = tuple(layer.kernel.shape)
    if entry_of(layer).kernel == "einsum":
        axes = _axes(layer)
        in_order = as_matrices.reshape([shape[axis] for axis in axes.order])
        return in_order.transpose(np.argsort(axes.order))
    return np.moveaxis(as_matrices, 0, 1).reshape(shape)


def _groups(layer: Layer) -> int:
    if entry_of(layer).kernel == "depthwise":
        return layer.kernel.shape[-2]
    return getattr(layer, "groups", 1)


_MOST_ROWS = 64
"""Maximum number of output positions per sample of a convolution."""


class Sums:
    """Accumulated moments of layers."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers, self._random = layers, np.random.default_rng(0)
        self._sums: dict[int, tuple[Any, Any, int]] = {}

    def add(self, number: int, behind: Any, before: Any) -> None:
        """Add the inputs of a call of the layer `number`.

        `behind` is the input in the float model, `before` the input in the rounded
        model.
        """
        layer = self._layers[number]
        tensors = (behind,) if before is behind else (behind, before)
        exact, *other = _rows(layer, tensors, self._random)
        rows = other[0] if other else exact
        columns_of_rows = rows.swapaxes(-1, -2)
        input_moments = (columns_of_rows @ rows).astype(np.float64)
        mixed_moments = (
            (columns_of_rows @ exact).astype(np.float64) if other else input_moments
        )
        sums = self._sums.get(number, (0.0, 0.0, 0))
        parts = (
            sums[0] + input_moments,
            sums[1] + mixed_moments,
            sums[2] + rows.shape[1],
        )
        self._sums[number] = parts

    def pop(self, number: int) -> Moments:
        """Return and remove the moments of a layer.

        Raises:
            DataError: If the moments are not finite.
        """
        moments = Moments(*self._sums.pop(number))
        if not (
            np.isfinite(moments.rounded).all() and np.isfinite(moments.mixed).all()
        ):
            raise DataError(
                f"The inputs of layer {self._layers[number].name!r} contain NaN or "
                "infinity. Next: check the data first, then the weights of earlier "
                "layers."
            )
        return moments


def _rows(
    layer: Layer, tensors: Sequence[Any], random: np.random.Generator
) -> list[np.ndarray]:
    """Return the rows of `columns` for several tensors at the same positions.

    A convolution reads each value many times. Rows are sampled per input sample to save
    memory.
    """
    arrays = [to_numpy(x).astype(np.float32) for x in tensors]
    if entry_of(layer).kernel in ("dense", "einsum"):
        return [columns(layer, x) for x in arrays]
    rows_by_tensor: list[list[np.ndarray]] = [[] for _ in arrays]
    for sample in range(len(arrays[0])):
        every = [columns(layer, x[sample : sample + 1]) for x in arrays]
        count = every[0].shape[1]
        places = np.arange(count)
        if count > _MOST_ROWS:
            places = random.choice(count, _MOST_ROWS, replace=False)
        for parts, part in zip(rows_by_tensor, every, strict=True):
            parts.append(part[:, places])
    return [np.concatenate(parts, axis=1) for parts in rows_by_tensor]
