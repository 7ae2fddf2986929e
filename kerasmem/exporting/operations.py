"""LiteRT's operations for the layers that compute with int8 codes."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static import layers as ours
from kerasmem.exporting import activations, windows
from kerasmem.exporting.writer import Writer
from kerasmem.exporting.writing import (
    ACTIVATION,
    PADDING,
    Write,
    kernel_and_bias,
    new,
    pad_to,
    reshape_to,
)
from kerasmem.graph.values import to_numpy

L = keras.layers


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
    ours.IntegerAdd: _elementwise("ADD", "AddOptions"),
    ours.IntegerAffine: _affine,
    ours.IntegerAveragePooling: windows.pooling("AVERAGE_POOL_2D"),
    ours.IntegerConv1D: windows.convolution,
    ours.IntegerConv2D: windows.convolution,
    ours.IntegerDense: _dense,
    ours.IntegerDepthwiseConv1D: windows.depthwise,
    ours.IntegerDepthwiseConv2D: windows.depthwise,
    ours.IntegerHardSilu: activations.hard_silu,
    ours.IntegerLeakyReLU: activations.leaky_relu,
    ours.IntegerMaxPooling: windows.pooling("MAX_POOL_2D"),
    ours.IntegerMean: _mean,
    ours.IntegerMultiply: _elementwise("MUL", "MulOptions"),
    ours.IntegerReLU: activations.relu,
    ours.IntegerTable: activations.table,
    ours.IntegerPadding: _pad,
    L.Concatenate: _concatenate,
    L.Flatten: _reshape,
    L.Reshape: _reshape,
}
"""By the class of the layer."""
