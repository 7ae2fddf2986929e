"""Zeros around pictures of codes."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.base import IntegerLayer


@keras.saving.register_keras_serializable("kerasmem")
class IntegerZeroPadding2D(IntegerLayer):
    """A `keras.layers.ZeroPadding2D` of codes.

    Args:
        padding: before and after, for height and width.
    """

    def __init__(self, *, padding: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.padding = tuple(map(tuple, padding))

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        pads = [(0, 0), *self.padding, (0, 0)]
        zero = float(self.output_codes.zero_point)
        numbers = ops.cast(inputs, "float32")
        return ops.cast(ops.pad(numbers, pads, constant_values=zero), "int8")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "padding": self.padding}
