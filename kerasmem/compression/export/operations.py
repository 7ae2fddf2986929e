"""LiteRT's operations for the layers that compute with int8 codes."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static import layers as ours
from kerasmem.compression.quantize.static.codes import Codes
from kerasmem.compression.quantize.static.kinds import ACTIVATIONS
from kerasmem.compression.quantize.static.split import activation_of
from kerasmem.compression.quantize.static.table import FUNCTIONS
from kerasmem.files.litert import Writer
from kerasmem.graph.channels.kind import kind
from kerasmem.graph.values import to_numpy

L = keras.layers

_SOFTMAX_CODES = Codes(1 / 256, -128)
"""LiteRT's softmax gives no others."""

_LOOKED_UP = {"sigmoid": "LOGISTIC", "tanh": "TANH"}

_PADDING = {"same": 0, "valid": 1}
_ACTIVATION = {None: 0, "relu": 1, "relu6": 3}

Write = Callable[[Writer, Any, Sequence[Any], Sequence[int], int], None]
"""Takes a writer, a layer, its `KerasTensor`s, their numbers, that of its output."""


def ending(layer: Any) -> tuple[Write, Codes] | None:
    """Return what writes an activation that stays float at the end of a model.

    None for any other layer.
    """
    name = kind(layer)
    function = getattr(layer, "activation", None)
    if name == "layers.Softmax" and layer.axis == -1:
        return _softmax, _SOFTMAX_CODES
    if name == "layers.Activation" and function is keras.activations.softmax:
        return _softmax, _SOFTMAX_CODES
    looked_up = activation_of(layer) or ""
    if looked_up not in FUNCTIONS or name not in ACTIVATIONS:
        return None
    return _named(_LOOKED_UP[looked_up]), FUNCTIONS[looked_up][1]


def _softmax(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    del layer
    writer.operation("SOFTMAX", inputs, output, "SoftmaxOptions", beta=1.0)


def _named(name: str) -> Write:
    def write(
        writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
    ) -> None:
        del layer
        writer.operation(name, inputs, output)

    return write


def _table(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    writer.operation(_LOOKED_UP[layer.function], inputs, output)


def _kernel_and_bias(
    writer: Writer, layer: Any, values: np.ndarray, axis: int
) -> tuple[int, int]:
    scales = to_numpy(layer.kernel_scale)
    kernel = writer.tensor(
        f"{layer.name}/kernel", values.shape, values=values, scales=scales, axis=axis
    )
    bias = writer.tensor(
        f"{layer.name}/bias",
        (layer.channels,),
        values=to_numpy(layer.bias),
        scales=np.float32(layer.input_codes[0].scale) * scales,
    )
    return kernel, bias


def _window(layer: Any) -> dict[str, int]:
    height, width = layer.strides
    return {
        "padding": _PADDING[layer.padding],
        "strideH": height,
        "strideW": width,
    }


def _convolution_options(layer: Any) -> dict[str, int]:
    height, width = layer.dilation
    return {
        **_window(layer),
        "dilationHFactor": height,
        "dilationWFactor": width,
        "fusedActivationFunction": _ACTIVATION[layer.activation],
    }


def _conv(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    kernel = np.ascontiguousarray(np.moveaxis(to_numpy(layer.kernel), -1, 0))
    weights = _kernel_and_bias(writer, layer, kernel, 0)
    options = _convolution_options(layer)
    writer.operation("CONV_2D", [*inputs, *weights], output, "Conv2DOptions", **options)


def _depthwise(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    kernel = to_numpy(layer.kernel)
    height, width, _channels, multiplier = kernel.shape
    kernel = kernel.reshape(1, height, width, layer.channels)
    weights = _kernel_and_bias(writer, layer, kernel, 3)
    writer.operation(
        "DEPTHWISE_CONV_2D",
        [*inputs, *weights],
        output,
        "DepthwiseConv2DOptions",
        depthMultiplier=multiplier,
        **_convolution_options(layer),
    )


def _affine(
    writer: Writer,
    layer: Any,
    tensors: Sequence[Any],
    inputs: Sequence[int],
    output: int,
) -> None:
    (tensor,), (source,) = tensors, inputs
    kernel = to_numpy(layer.kernel).reshape(1, 1, 1, layer.channels)
    weights = _kernel_and_bias(writer, layer, kernel, 3)
    target, pictures = output, len(tensor.shape) == 4
    if not pictures:
        shape = (None, 1, 1, layer.channels)
        (before,), after = layer.input_codes, layer.output_codes
        flat = _new(writer, f"{layer.name}/rows", shape, before)
        _reshape_to(writer, source, flat, shape)
        source, target = flat, _new(writer, f"{layer.name}/scaled", shape, after)
    writer.operation(
        "DEPTHWISE_CONV_2D",
        [source, *weights],
        target,
        "DepthwiseConv2DOptions",
        padding=_PADDING["valid"],
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        depthMultiplier=1,
        fusedActivationFunction=_ACTIVATION[layer.activation],
    )
    if not pictures:
        _reshape_to(writer, target, output, tensor.shape)


def _new(writer: Writer, name: str, shape: Sequence[int | None], codes: Codes) -> int:
    return writer.tensor(name, shape, scales=[codes.scale], zero_point=codes.zero_point)


def _reshape_to(
    writer: Writer, source: int, target: int, shape: Sequence[int | None]
) -> None:
    values = np.array([-1, *shape[1:]], np.int32)
    wanted = writer.tensor(f"shape_{target}", values.shape, values=values)
    writer.operation("RESHAPE", [source, wanted], target, "ReshapeOptions")


def _dense(
    writer: Writer, layer: Any, tensors: Sequence[Any], inputs: Sequence[int], out: int
) -> None:
    kernel = np.ascontiguousarray(to_numpy(layer.kernel).T)
    writer.operation(
        "FULLY_CONNECTED",
        [*inputs, *_kernel_and_bias(writer, layer, kernel, 0)],
        out,
        "FullyConnectedOptions",
        keepNumDims=len(tensors[0].shape) > 2,
        fusedActivationFunction=_ACTIVATION[layer.activation],
    )


def _elementwise(name: str, kind: str) -> Write:
    def write(
        writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
    ) -> None:
        fused = _ACTIVATION[layer.activation]
        writer.operation(name, inputs, output, kind, fusedActivationFunction=fused)

    return write


def _relu(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    writer.operation(layer.activation.upper(), inputs, output)


def _leaky_relu(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    kind, slope = "LeakyReluOptions", layer.slope
    writer.operation("LEAKY_RELU", inputs, output, kind, alpha=slope)


def _hard_silu(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    del layer
    writer.operation("HARD_SWISH", inputs, output, "HardSwishOptions")


def _pool(name: str) -> Write:
    def write(
        writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
    ) -> None:
        height, width = layer.pool_size
        size = {"filterHeight": height, "filterWidth": width}
        writer.operation(
            name, inputs, output, "Pool2DOptions", **_window(layer), **size
        )

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
    values = np.array([(0, 0), *layer.padding, (0, 0)], np.int32)
    pads = writer.tensor(f"{layer.name}/padding", values.shape, values=values)
    writer.operation("PAD", [*inputs, pads], output, "PadOptions")


def _reshape(
    writer: Writer, layer: Any, tensors: Sequence[Any], inputs: Sequence[int], out: int
) -> None:
    _reshape_to(writer, inputs[0], out, layer.compute_output_shape(tensors[0].shape))


def _concatenate(
    writer: Writer, layer: Any, tensors: Sequence[Any], inputs: Sequence[int], out: int
) -> None:
    axis = layer.axis % len(tensors[0].shape)
    kind = "ConcatenationOptions"
    writer.operation("CONCATENATION", inputs, out, kind, axis=axis)


OPERATIONS: dict[type, Write] = {
    ours.IntegerAdd: _elementwise("ADD", "AddOptions"),
    ours.IntegerAffine: _affine,
    ours.IntegerAveragePooling2D: _pool("AVERAGE_POOL_2D"),
    ours.IntegerConv2D: _conv,
    ours.IntegerDense: _dense,
    ours.IntegerDepthwiseConv2D: _depthwise,
    ours.IntegerHardSilu: _hard_silu,
    ours.IntegerLeakyReLU: _leaky_relu,
    ours.IntegerMaxPooling2D: _pool("MAX_POOL_2D"),
    ours.IntegerMean: _mean,
    ours.IntegerMultiply: _elementwise("MUL", "MulOptions"),
    ours.IntegerReLU: _relu,
    ours.IntegerTable: _table,
    ours.IntegerZeroPadding2D: _pad,
    L.Concatenate: _concatenate,
    L.Flatten: _reshape,
    L.Reshape: _reshape,
}
