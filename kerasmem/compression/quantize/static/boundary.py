"""From floats to codes and back."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.base import IntegerLayer, centered
from kerasmem.compression.quantize.static.codes import LEAST, MOST


@keras.saving.register_keras_serializable("kerasmem")
class ToCodes(IntegerLayer):
    """Rounds floats to int8 codes."""

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the shape of the inputs, in int8."""
        # Not by tracing: some operations of Keras say that they give sparse tensors.
        return keras.KerasTensor(inputs.shape, dtype="int8")

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of floats; what is outside of the range gets its end."""
        ops, codes = keras.ops, self.output_codes
        steps = ops.round(ops.cast(inputs, "float32") / codes.scale)
        # Clipped while they are floats: a cast of what is too large may give anything.
        clipped = ops.clip(steps, LEAST - codes.zero_point, MOST - codes.zero_point)
        return ops.cast(clipped + codes.zero_point, "int8")


@keras.saving.register_keras_serializable("kerasmem")
class FromCodes(IntegerLayer):
    """Gives the floats that int8 codes stand for."""

    def call(self, inputs: Any) -> Any:
        """Return float32 numbers."""
        codes = self.output_codes
        steps = centered(inputs, codes.zero_point)
        return keras.ops.cast(steps, "float32") * codes.scale
