"""LiteRT's operations for the layers that compute with int8 codes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kerasmem.compression.quantize.static import elementwise, pooling, products
from kerasmem.exporting import activations, windows
from kerasmem.exporting.writer import (
    ACTIVATION,
    PADDING,
    Write,
    Writer,
    kernel_and_bias,
    new,
    pad_to,
    reshape_to,
)
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.values import to_numpy


def _affine(
    writer: Writer,
    layer: Any,
    tensors: Sequence[Any],
    inputs: Sequence[int],
    output: int,
) -> None:
    (tensor,), (source,) = tensors, inputs
    kernel = to_numpy(layer.kernel).reshape(1, 1, 1, layer.channels)
    weights = kernel_and_bias(writer, layer, kernel, 3)
    target, pictures = output, len(tensor.shape) == 4
    if not pictures:
        shape = (None, 1, 1, layer.channels)
        (before,), after = layer.input_codes, layer.output_codes
        flat = new(writer, f"{layer.name}/rows", shape, before)
        reshape_to(writer, source, flat, shape)
        source, target = flat, new(writer, f"{layer.name}/scaled", shape, after)
    writer.operation(
        "DEPTHWISE_CONV_2D",
        [source, *weights],
        target,
        "DepthwiseConv2DOptions",
        padding=PADDING["valid"],
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        depthMultiplier=1,
        fusedActivationFunction=ACTIVATION[layer.activation],
    )
    if not pictures:
        reshape_to(writer, target, output, tensor.shape)


def _dense(
    writer: Writer, layer: Any, tensors: Sequence[Any], inputs: Sequence[int], out: int
) -> None:
    kernel = np.ascontiguousarray(to_numpy(layer.kernel).T)
    writer.operation(
        "FULLY_CONNECTED",
        [*inputs, *kernel_and_bias(writer, layer, kernel, 0)],
        out,
        "FullyConnectedOptions",
        keepNumDims=len(tensors[0].shape) > 2,
        fusedActivationFunction=ACTIVATION[layer.activation],
    )


def _elementwise(name: str, kind: str) -> Write:
    def write(
        writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
    ) -> None:
        fused = ACTIVATION[layer.activation]
        writer.operation(name, inputs, output, kind, fusedActivationFunction=fused)

    return write


def _mean(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    values = np.array([1, 2], np.int32)
    axes = writer.tensor(f"{layer.name}/axes", values.shape, values=values)
    kept = layer.keepdims
    writer.operation("MEAN", [*inputs, axes], output, "ReducerOptions", keepDims=kept)


def _pad(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    pad_to(writer, inputs[0], output, layer.pads)


def _reshape(
    writer: Writer, layer: Any, tensors: Sequence[Any], inputs: Sequence[int], out: int
) -> None:
    reshape_to(writer, inputs[0], out, layer.compute_output_shape(tensors[0].shape))


def _concatenate(
    writer: Writer, layer: Any, tensors: Sequence[Any], inputs: Sequence[int], out: int
) -> None:
    axis = layer.axis % len(tensors[0].shape)
    kind = "ConcatenationOptions"
    writer.operation("CONCATENATION", inputs, out, kind, axis=axis)


OPERATIONS: dict[type, Write] = {
    elementwise.IntegerAdd: _elementwise("ADD", "AddOptions"),
    products.IntegerAffine: _affine,
    pooling.IntegerAveragePooling: windows.pooling("AVERAGE_POOL_2D"),
    products.IntegerConv1D: windows.convolution,
    products.IntegerConv2D: windows.convolution,
    products.IntegerDense: _dense,
    products.IntegerDepthwiseConv1D: windows.depthwise,
    products.IntegerDepthwiseConv2D: windows.depthwise,
    elementwise.IntegerHardSilu: activations.hard_silu,
    elementwise.IntegerLeakyReLU: activations.leaky_relu,
    pooling.IntegerMaxPooling: windows.pooling("MAX_POOL_2D"),
    pooling.IntegerMean: _mean,
    elementwise.IntegerMultiply: _elementwise("MUL", "MulOptions"),
    elementwise.IntegerReLU: activations.relu,
    elementwise.IntegerTable: activations.table,
    pooling.IntegerPadding: _pad,
}
"""By the class of a layer of codes."""

_PLAIN: dict[str | None, Write] = {"concatenate": _concatenate, "reshape": _reshape}
"""By the column `integer` of the layer table: layers that codes pass through."""


def writer_of(layer: Any) -> Write | None:
    """Return what writes a layer, None if nothing does."""
    return OPERATIONS.get(type(layer)) or _PLAIN.get(entry_of(layer).integer)
