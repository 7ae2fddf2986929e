"""What all that writes operations of a LiteRT file shares."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.quantize.static.codes import Codes
from kerasmem.files.litert import Writer

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
