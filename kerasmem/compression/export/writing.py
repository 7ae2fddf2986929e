"""What all that writes operations of a LiteRT file shares."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.quantize.static.base import RELU
from kerasmem.compression.quantize.static.codes import MOST, Codes
from kerasmem.files.litert import Writer

Write = Callable[[Writer, Any, Sequence[Any], Sequence[int], int], None]
"""Takes a writer, a layer, its `KerasTensor`s, their numbers, that of its output."""

_FUSED = {None: 0, "relu": 1, "relu6": 3}

PADDING = {"same": 0, "valid": 1, "causal": 1}
"""LiteRT's numbers; what causal padding adds is an operation of its own."""


def within(layer: Any) -> Any:
    """Return the name of what an integer layer has within it.

    A ReLU6 is a ReLU where 6 lies beyond the last code. LiteRT counts 6 in steps of the
    output and refuses a file where that count does not fit 32 bits.
    """
    codes = layer.output_codes
    largest = codes.scale * (MOST - codes.zero_point)
    cuts = layer.activation == "relu6" and largest >= RELU["relu6"]
    return layer.activation if cuts or layer.activation is None else "relu"


def fused(layer: Any) -> int:
    """Return LiteRT's number of the activation that an integer layer has within it."""
    return _FUSED[within(layer)]


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
