"""What all that writes operations of a LiteRT file shares."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.quantize.static.codes import Codes
from kerasmem.exporting.writer import Writer
from kerasmem.graph.values import to_numpy

Write = Callable[[Writer, Any, Sequence[Any], Sequence[int], int], None]
"""Takes a writer, a layer, its `KerasTensor`s, their numbers, that of its output."""

ACTIVATION = {None: 0, "relu": 1, "relu6": 3}
"""LiteRT's numbers of the activations that an operation can have within it."""

PADDING = {"same": 0, "valid": 1, "causal": 1}
"""LiteRT's numbers; what causal padding adds is an operation of its own."""


def new(writer: Writer, name: str, shape: Sequence[int | None], codes: Codes) -> int:
    """Return the number of a new tensor of codes."""
    return writer.tensor(name, shape, scales=[codes.scale], zero_point=codes.zero_point)


def reshape_to(
    writer: Writer, source: int, target: int, shape: Sequence[int | None]
) -> None:
    """Write that a tensor gets another shape."""
    values = np.array([-1, *shape[1:]], np.int32)
    wanted = writer.tensor(f"shape_{target}", values.shape, values=values)
    writer.operation("RESHAPE", [source, wanted], target, "ReshapeOptions")


def pad_to(writer: Writer, source: int, target: int, pads: Sequence[Any]) -> None:
    """Write that zeros go before and after each axis."""
    values = np.array(pads, np.int32)
    wanted = writer.tensor(f"padding_{target}", values.shape, values=values)
    writer.operation("PAD", [source, wanted], target, "PadOptions")


def kernel_and_bias(
    writer: Writer, layer: Any, values: np.ndarray, axis: int
) -> tuple[int, int]:
    """Return the numbers of two new tensors.

    Args:
        writer: gets them.
        layer: an integer layer with a kernel.
        values: the codes of the kernel, laid out as LiteRT wants them.
        axis: their axis of channels.
    """
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
