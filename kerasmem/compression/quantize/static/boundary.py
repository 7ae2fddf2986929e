"""From floats to codes and back."""

import warnings
from typing import Any

import keras

from kerasmem.compression.quantize.static.base import (
    LEAST,
    MOST,
    IntegerLayer,
    centered,
)
from kerasmem.errors import KerasMemWarning

_UNTRAINED = (
    "Layers that compute with int8 codes are not trained, and no gradient reaches what "
    "is before them: this training leaves them as they are. Next: train "
    "km.quantization_aware(model, km.Quantize('int8-static')) of the float model, and "
    "quantize that."
)


@keras.saving.register_keras_serializable("kerasmem")
class ToCodes(IntegerLayer):
    """Rounds floats to int8 codes.

    Args:
        warns: whether it says in training that its model is not trained.
    """

    def __init__(
        self, inputs: Any, output: Any, *, warns: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(inputs, output, **kwargs)
        self.warns = warns

    def compute_output_spec(self, inputs: Any, training: Any = None) -> Any:
        """Return the shape of the inputs, in int8."""
        del training
        # Not by tracing: some operations of Keras say that they give sparse tensors.
        return keras.KerasTensor(inputs.shape, dtype="int8")

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return int8 codes of floats; what is outside of the range gets its end.

        Warns:
            KerasMemWarning: in training, if it is to.
        """
        if self.warns and training is True:
            warnings.warn(_UNTRAINED, KerasMemWarning, stacklevel=2)
        ops, codes = keras.ops, self.output_codes
        steps = ops.round(ops.cast(inputs, "float32") / codes.scale)
        # Clipped while they are floats: a cast of what is too large may give anything.
        clipped = ops.clip(steps, LEAST - codes.zero_point, MOST - codes.zero_point)
        return ops.cast(clipped + codes.zero_point, "int8")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "warns": self.warns}


@keras.saving.register_keras_serializable("kerasmem")
class FromCodes(IntegerLayer):
    """Gives the floats that int8 codes stand for."""

    def call(self, inputs: Any) -> Any:
        """Return float32 numbers."""
        codes = self.output_codes
        steps = centered(inputs, codes.zero_point)
        return keras.ops.cast(steps, "float32") * codes.scale
