"""LiteRT's operations for what looks at windows of pictures and sequences."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

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
from kerasmem.graph.values import to_numpy


def convolution(
    writer: Writer,
    layer: Any,
    tensors: Sequence[Any],
    inputs: Sequence[int],
    output: int,
) -> None:
    """Write a convolution over pictures or sequences."""
    kernel = np.ascontiguousarray(np.moveaxis(to_numpy(layer.kernel), -1, 0))
    if kernel.ndim == 3:
        kernel = kernel[:, None]
    with _as_picture(writer, layer, tensors[0], inputs[0], output) as (source, target):
        weights = kernel_and_bias(writer, layer, kernel, 0)
        options = _convolution_options(layer)
        kind = "Conv2DOptions"
        writer.operation("CONV_2D", [source, *weights], target, kind, **options)


def depthwise(
    writer: Writer,
    layer: Any,
    tensors: Sequence[Any],
    inputs: Sequence[int],
    output: int,
) -> None:
    """Write a depthwise convolution over pictures or sequences."""
    kernel = to_numpy(layer.kernel)
    multiplier = kernel.shape[-1]
    kernel = kernel.reshape(1, *_of_pictures(kernel.shape[:-2]), layer.channels)
    with _as_picture(writer, layer, tensors[0], inputs[0], output) as (source, target):
        writer.operation(
            "DEPTHWISE_CONV_2D",
            [source, *kernel_and_bias(writer, layer, kernel, 3)],
            target,
            "DepthwiseConv2DOptions",
            depthMultiplier=multiplier,
            **_convolution_options(layer),
        )


def pooling(name: str) -> Write:
    """Return what writes the pooling of LiteRT that has a name."""

    def write(
        writer: Writer,
        layer: Any,
        tensors: Sequence[Any],
        inputs: Sequence[int],
        output: int,
    ) -> None:
        height, width = _of_pictures(layer.pool_size)
        options = {"filterHeight": height, "filterWidth": width, **_window(layer)}
        ends = _as_picture(writer, layer, tensors[0], inputs[0], output)
        with ends as (source, target):
            writer.operation(name, [source], target, "Pool2DOptions", **options)

    return write


def _convolution_options(layer: Any) -> dict[str, int]:
    height, width = _of_pictures(layer.dilation)
    return {
        **_window(layer),
        "dilationHFactor": height,
        "dilationWFactor": width,
        "fusedActivationFunction": ACTIVATION[layer.activation],
    }


def _window(layer: Any) -> dict[str, int]:
    height, width = _of_pictures(layer.strides)
    return {
        "padding": PADDING[layer.padding],
        "strideH": height,
        "strideW": width,
    }


def _of_pictures(lengths: Sequence[int]) -> tuple[int, int]:
    """Return lengths for height and width; a sequence is a picture of height 1."""
    return (1, lengths[0]) if len(lengths) == 1 else (lengths[0], lengths[1])


@contextmanager
def _as_picture(
    writer: Writer, layer: Any, tensor: Any, source: int, output: int
) -> Iterator[tuple[int, int]]:
    """Return a scope with numbers of a picture that goes in and one that comes out.

    A sequence becomes a picture of height 1 before, and a sequence again behind.
    """
    if len(tensor.shape) == 4:
        yield source, output
        return
    _, length, channels = tensor.shape
    (before,), after = layer.input_codes, layer.output_codes
    shape = (None, 1, length, channels)
    picture = new(writer, f"{layer.name}/row", shape, before)
    reshape_to(writer, source, picture, shape)
    if layer.padding == "causal":
        shape = (None, 1, length + layer.before, channels)
        longer = new(writer, f"{layer.name}/longer", shape, before)
        pad_to(writer, picture, longer, ((0, 0), (0, 0), (layer.before, 0), (0, 0)))
        picture = longer
    shape = layer.compute_output_spec(tensor).shape
    made = new(writer, f"{layer.name}/made", (None, 1, *shape[1:]), after)
    yield picture, made
    reshape_to(writer, made, output, shape)
