"""Activations that are looked up: a code has only 256 values."""

import abc
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static.base import IntegerLayer
from kerasmem.compression.quantize.static.codes import LEAST, MOST, Codes

FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Codes]] = {
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), Codes(1 / 256, -128)),
    "tanh": (np.tanh, Codes(1 / 128, 0)),
}
"""The activations, with the codes that LiteRT gives them; it takes no others."""


class IntegerLookup(IntegerLayer):
    """A function of one code, looked up; a subclass says in `table` which."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        table = ops.convert_to_tensor(self.table())
        return ops.take(table, ops.cast(inputs, "int32") - LEAST, axis=0)

    @abc.abstractmethod
    def table(self) -> np.ndarray:
        """Return the code for every code from -128, int8."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerTable(IntegerLookup):
    """A sigmoid or hyperbolic tangent of codes.

    Args:
        function: a key of `FUNCTIONS`.
    """

    def __init__(self, *, function: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

    def table(self) -> np.ndarray:
        """Return the code for every code from -128, int8."""
        (codes,) = self.input_codes
        steps = np.arange(LEAST, MOST + 1, dtype=np.float32) - codes.zero_point
        values = FUNCTIONS[self.function][0](np.float32(codes.scale) * steps)
        scaled = values.astype(np.float32) / np.float32(self.output_codes.scale)
        # Halves away from zero, as C rounds.
        nearest = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
        shifted = nearest + self.output_codes.zero_point
        return np.clip(shifted, LEAST, MOST).astype(np.int8)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "function": self.function}
