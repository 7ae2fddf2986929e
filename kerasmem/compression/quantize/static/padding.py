"""Zeros around tensors of codes."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.base import IntegerLayer
from kerasmem.graph.channels.kind import kind

Pads = tuple[tuple[int, int], ...]
"""Entries before and after, for every axis, the batch first."""


def pads_of(operation: Any, rank: int) -> Pads:
    """Return what a padding adds to a tensor.

    Args:
        operation: `ZeroPadding1D`, `ZeroPadding2D` or the operation of `ops.pad`.
        rank: number of axes of the tensor.
    """
    if kind(operation) == "ops.Pad":
        pads = [tuple(map(int, pair)) for pair in operation.pad_width]
        pads *= rank if len(pads) == 1 else 1
    else:
        own = operation.padding
        pads = [(0, 0), *([own] if rank == 3 else own), (0, 0)]
    return tuple((before, after) for before, after in pads)


@keras.saving.register_keras_serializable("kerasmem")
class IntegerPadding(IntegerLayer):
    """A `ZeroPadding1D`, `ZeroPadding2D` or `keras.ops.pad` of codes.

    Args:
        pads: entries before and after, for every axis, the batch first.
    """

    def __init__(self, *, pads: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pads = tuple(map(tuple, pads))

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        zero = float(self.output_codes.zero_point)
        numbers = ops.cast(inputs, "float32")
        return ops.cast(ops.pad(numbers, self.pads, constant_values=zero), "int8")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "pads": self.pads}
