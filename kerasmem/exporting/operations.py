"""LiteRT's operations for the layers that compute with int8 codes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static import elementwise, products
from kerasmem.compression.quantize.static.base import Codes
from kerasmem.compression.quantize.static.calls import activation_of
from kerasmem.compression.quantize.static.elementwise import FUNCTIONS
from kerasmem.errors import ModelError
from kerasmem.exporting.writer import Writer
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.values import to_numpy

_ACTIVATION = {None: 0, "relu": 1, "relu6": 3}
"""LiteRT's numbers of the activations that an operation can have within it."""

_PADDING = {"same": 0, "valid": 1, "causal": 1}
"""LiteRT's numbers; what causal padding adds is an operation of its own."""

Shape = Sequence[int | None]


@dataclass(frozen=True)
class Lowering:
    """One call of a layer on its way into a file.

    Args:
        writer: of the file.
        layer: what is called.
        tensors: the `KerasTensor`s that go in.
        inputs: the numbers of these in the file.
        output: that of what comes out.
    """

    writer: Writer
    layer: Any
    tensors: Sequence[Any]
    inputs: Sequence[int]
    output: int

    def write(
        self,
        name: str,
        kind: str | None = None,
        constants: Sequence[int] = (),
        **options: Any,
    ) -> None:
        """Write one operation, from the inputs and constants to the output.

        Args:
            name: see `Writer.operation`.
            kind: likewise.
            constants: numbers of tensors.
            options: likewise.
        """
        inputs = [*self.inputs, *constants]
        self.writer.operation(name, inputs, self.output, kind, **options)

    def reshape(self, source: int, target: int, shape: Shape) -> None:
        """Write that a tensor gets another shape."""
        wanted = self._constant(f"shape_{target}", [-1, *shape[1:]])
        self.writer.operation("RESHAPE", [source, wanted], target, "ReshapeOptions")

    def pad(self, source: int, target: int, pads: Sequence[Any]) -> None:
        """Write that zeros go before and after each axis."""
        wanted = self._constant(f"padding_{target}", pads)
        self.writer.operation("PAD", [source, wanted], target, "PadOptions")

    def axes(self, *axes: int) -> int:
        """Return the number of a new tensor of axes."""
        return self._constant(f"{self.layer.name}/axes", axes)

    def _constant(self, name: str, numbers: Any) -> int:
        values = np.array(numbers, np.int32)
        return self.writer.tensor(name, values.shape, values=values)

    def kernel_and_bias(self, values: np.ndarray, axis: int) -> tuple[int, int]:
        """Return the numbers of two new tensors.

        Args:
            values: the codes of the kernel, laid out as LiteRT wants them.
            axis: their axis of channels.
        """
        layer, writer = self.layer, self.writer
        scales = to_numpy(layer.kernel_scale)
        kernel = writer.tensor(
            f"{layer.name}/kernel",
            values.shape,
            values=values,
            scales=scales,
            axis=axis,
        )
        bias = writer.tensor(
            f"{layer.name}/bias",
            (layer.channels,),
            values=to_numpy(layer.bias),
            scales=np.float32(layer.input_codes[0].scale) * scales,
        )
        return kernel, bias

    @contextmanager
    def as_pictures(self, before: Shape, after: Shape) -> Iterator["Lowering"]:
        """Yield the call on tensors of other shapes, between two reshapes.

        Args:
            before: the shape that goes in, (batch, height, width, channels).
            after: likewise, that comes out.
        """
        (codes,), layer = self.layer.input_codes, self.layer
        writer = self.writer
        source = writer.codes(f"{layer.name}/row", before, codes)
        self.reshape(self.inputs[0], source, before)
        if getattr(layer, "padding", None) == "causal":
            batch, height, length, channels = before
            longer = (batch, height, length + layer.before, channels)
            padded = writer.codes(f"{layer.name}/longer", longer, codes)
            self.pad(source, padded, ((0, 0), (0, 0), (layer.before, 0), (0, 0)))
            source = padded
        target = writer.codes(f"{layer.name}/picture", after, layer.output_codes)
        yield Lowering(writer, layer, self.tensors, [source], target)
        shape = layer.compute_output_spec(self.tensors[0]).shape
        self.reshape(target, self.output, shape)


Write = Callable[[Lowering], object]
"""Writes what a layer does."""


def _affine(call: Lowering) -> None:
    if len(call.tensors[0].shape) != 4:
        shape = (None, 1, 1, call.layer.channels)
        with call.as_pictures(shape, shape) as pictures:
            _scaled(pictures)
    else:
        _scaled(call)


def _scaled(call: Lowering) -> None:
    """Write a product of every channel with a number of its own."""
    kernel = to_numpy(call.layer.kernel).reshape(1, 1, 1, call.layer.channels)
    call.write(
        "DEPTHWISE_CONV_2D",
        "DepthwiseConv2DOptions",
        call.kernel_and_bias(kernel, 3),
        padding=_PADDING["valid"],
        strideH=1,
        strideW=1,
        dilationHFactor=1,
        dilationWFactor=1,
        depthMultiplier=1,
        fusedActivationFunction=_ACTIVATION[call.layer.activation],
    )


def _dense(call: Lowering) -> None:
    kernel = np.ascontiguousarray(to_numpy(call.layer.kernel).T)
    call.write(
        "FULLY_CONNECTED",
        "FullyConnectedOptions",
        call.kernel_and_bias(kernel, 0),
        keepNumDims=len(call.tensors[0].shape) > 2,
        fusedActivationFunction=_ACTIVATION[call.layer.activation],
    )


def _convolution(call: Lowering) -> None:
    kernel = np.ascontiguousarray(np.moveaxis(to_numpy(call.layer.kernel), -1, 0))
    if kernel.ndim == 3:
        kernel = kernel[:, None]
    with _pictures(call) as pictures:
        pictures.write(
            "CONV_2D",
            "Conv2DOptions",
            call.kernel_and_bias(kernel, 0),
            **_convolution_options(call.layer),
        )


def _depthwise(call: Lowering) -> None:
    kernel = to_numpy(call.layer.kernel)
    multiplier = kernel.shape[-1]
    kernel = kernel.reshape(1, *_of_pictures(kernel.shape[:-2]), call.layer.channels)
    with _pictures(call) as pictures:
        pictures.write(
            "DEPTHWISE_CONV_2D",
            "DepthwiseConv2DOptions",
            call.kernel_and_bias(kernel, 3),
            depthMultiplier=multiplier,
            **_convolution_options(call.layer),
        )


def _pooling(name: str) -> Write:
    def write(call: Lowering) -> None:
        height, width = _of_pictures(call.layer.pool_size)
        size = {"filterHeight": height, "filterWidth": width}
        with _pictures(call) as pictures:
            pictures.write(name, "Pool2DOptions", (), **size, **_window(call.layer))

    return write


@contextmanager
def _pictures(call: Lowering) -> Iterator[Lowering]:
    """Yield a call on pictures: a sequence becomes one of height 1, and again one."""
    (tensor, *_), layer = call.tensors, call.layer
    if len(tensor.shape) == 4:
        yield call
        return
    after = layer.compute_output_spec(tensor).shape
    shapes = ((None, 1, *shape[1:]) for shape in (tensor.shape, after))
    with call.as_pictures(*shapes) as pictures:
        yield pictures


def _convolution_options(layer: Any) -> dict[str, int]:
    height, width = _of_pictures(layer.dilation_rate)
    return {
        **_window(layer),
        "dilationHFactor": height,
        "dilationWFactor": width,
        "fusedActivationFunction": _ACTIVATION[layer.activation],
    }


def _window(layer: Any) -> dict[str, int]:
    height, width = _of_pictures(layer.strides)
    return {"padding": _PADDING[layer.padding], "strideH": height, "strideW": width}


def _of_pictures(lengths: Sequence[int]) -> tuple[int, int]:
    """Return lengths for height and width; a sequence is a picture of height 1."""
    return (1, lengths[0]) if len(lengths) == 1 else (lengths[0], lengths[1])


def _elementwise(name: str, kind: str) -> Write:
    def write(call: Lowering) -> None:
        fused = _ACTIVATION[call.layer.activation]
        call.write(name, kind, fusedActivationFunction=fused)

    return write


def _mean(call: Lowering) -> None:
    axes = call.axes(1, 2)
    call.write("MEAN", "ReducerOptions", [axes], keepDims=call.layer.keepdims)


def _pad(call: Lowering) -> None:
    call.pad(call.inputs[0], call.output, call.layer.pads)


def _reshape(call: Lowering) -> None:
    shape = call.layer.compute_output_shape(call.tensors[0].shape)
    call.reshape(call.inputs[0], call.output, shape)


def _concatenate(call: Lowering) -> None:
    axis = call.layer.axis % len(call.tensors[0].shape)
    call.write("CONCATENATION", "ConcatenationOptions", axis=axis)


def _relu(call: Lowering) -> None:
    call.write(call.layer.activation.upper())


def _leaky_relu(call: Lowering) -> None:
    call.write("LEAKY_RELU", "LeakyReluOptions", alpha=call.layer.slope)


def _hard_silu(call: Lowering) -> None:
    call.write("HARD_SWISH", "HardSwishOptions")


def _softmax(call: Lowering) -> None:
    call.write("SOFTMAX", "SoftmaxOptions", beta=1.0)


def _looked_up(call: Lowering) -> None:
    is_table = isinstance(call.layer, elementwise.IntegerTable)
    function = call.layer.function if is_table else activation_of(call.layer)
    call.write(_LOOKED_UP[function or ""])


_LOOKED_UP = {"sigmoid": "LOGISTIC", "tanh": "TANH"}

OPERATIONS: dict[type, Write] = {
    elementwise.IntegerAdd: _elementwise("ADD", "AddOptions"),
    products.IntegerAffine: _affine,
    elementwise.IntegerAveragePooling: _pooling("AVERAGE_POOL_2D"),
    products.IntegerConv1D: _convolution,
    products.IntegerConv2D: _convolution,
    products.IntegerDense: _dense,
    products.IntegerDepthwiseConv1D: _depthwise,
    products.IntegerDepthwiseConv2D: _depthwise,
    elementwise.IntegerHardSilu: _hard_silu,
    elementwise.IntegerLeakyReLU: _leaky_relu,
    elementwise.IntegerMaxPooling: _pooling("MAX_POOL_2D"),
    elementwise.IntegerMean: _mean,
    elementwise.IntegerMultiply: _elementwise("MUL", "MulOptions"),
    elementwise.IntegerReLU: _relu,
    elementwise.IntegerTable: _looked_up,
    elementwise.IntegerPadding: _pad,
}
"""By the class of a layer of codes."""

_PLAIN: dict[str | None, Write] = {"concatenate": _concatenate, "reshape": _reshape}
"""By the column `integer` of the layer table: layers that codes pass through."""


def writer_of(layer: Any) -> Write | None:
    """Return what writes a layer, None if nothing does."""
    return OPERATIONS.get(type(layer)) or _PLAIN.get(entry_of(layer).integer)


_SOFTMAX_CODES = Codes(1 / 256, -128)
"""LiteRT's softmax gives no others."""

_LEAST_STEP = 2.0**-26
_LEAST_RELU6_STEP = 6 / (2.0**31 - 2**8)


def ending(layer: Any, codes: Codes) -> tuple[Write, Codes] | None:
    """Return what writes an activation that stays float at the end of a model.

    Args:
        layer: the activation.
        codes: of its input.

    Returns:
        What writes it, and the codes that come out; None for any other layer.

    Raises:
        ModelError: if LiteRT would end the process rather than compute it.
    """
    entry = entry_of(layer)
    function = getattr(layer, "activation", None)
    is_softmax = entry.name == "layers.Softmax" and layer.axis == -1
    if is_softmax or (
        entry.channels == "activation" and function is keras.activations.softmax
    ):
        _check_softmax(layer, codes)
        return _softmax, _SOFTMAX_CODES
    name = activation_of(layer) or ""
    if name not in FUNCTIONS or entry.integer != "activation":
        return None
    return _looked_up, FUNCTIONS[name][1]


def _check_softmax(layer: Any, codes: Codes) -> None:
    if codes.scale <= _LEAST_STEP:
        raise ModelError(
            f"LiteRT cannot run {layer.name!r}: the steps of what its softmax takes "
            f"must be above {_LEAST_STEP:.3g}. Received: steps of {codes.scale:.3g}. "
            "Next: train the model first, or give data that its classes differ on."
        )


def check_relu6(layer: Any) -> None:
    """Raise if LiteRT cannot count 6 in steps of what a layer with ReLU6 gives.

    Args:
        layer: an integer layer.

    Raises:
        ModelError: with the layer and its steps.
    """
    if layer.activation == "relu6" and layer.output_codes.scale < _LEAST_RELU6_STEP:
        raise ModelError(
            f"LiteRT cannot run {layer.name!r}: the steps of what its ReLU6 gives must "
            f"be at least {_LEAST_RELU6_STEP:.3g}, for it counts 6 in them in 32 bits. "
            f"Received: steps of {layer.output_codes.scale:.3g}. Next: train the model "
            "first, or give data that it gives larger values for."
        )
