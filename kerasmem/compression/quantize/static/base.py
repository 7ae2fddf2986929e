"""What all layers share that compute with int8 codes."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.codes import LEAST, MOST, Codes

RELU = {"relu": None, "relu6": 6.0}
"""Upper ends of the activations that a layer can have within it."""


class IntegerLayer(keras.layers.Layer):
    """A layer that computes with int8 codes as LiteRT's kernels do.

    Args:
        inputs: the codes of each of its inputs; none for a layer that takes floats.
        output: the codes of its output; None where it gives floats.
        activation: None, `"relu"` or `"relu6"`, within it.
        keeps_mask: whether a mask goes through it.
    """

    def __init__(
        self,
        inputs: Any,
        output: Any,
        activation: str | None = None,
        *,
        keeps_mask: bool = True,
        **kwargs: Any,
    ) -> None:
        # Not the global policy: codes and scales do not fit half precision.
        super().__init__(**{"dtype": "float32", "trainable": False, **kwargs})
        self.supports_masking = True
        self.input_codes = tuple(map(_codes, inputs))
        self.output_codes = output and _codes(output)
        self.activation = activation
        self.keeps_mask = keeps_mask

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            **super().get_config(),
            "inputs": [codes.to_json() for codes in self.input_codes],
            "output": self.output_codes and self.output_codes.to_json(),
            "activation": self.activation,
            "keeps_mask": self.keeps_mask,
        }

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Return the mask of the inputs where one goes through, else None."""
        del inputs
        return previous_mask if self.keeps_mask else None

    def finished(self, integers: Any) -> Any:
        """Return int8 codes of int32 numbers in steps of the output's scale."""
        low, high = LEAST, MOST
        zero = self.output_codes.zero_point
        if self.activation is not None:
            low, top = zero, RELU[self.activation]
            high = MOST if top is None else self.output_codes.of(top)
        return keras.ops.cast(keras.ops.clip(integers + zero, low, high), "int8")


def centered(codes: Any, zero_point: int) -> Any:
    """Return int32 numbers: codes less the code of zero."""
    return keras.ops.cast(codes, "int32") - zero_point


def _codes(given: Any) -> Codes:
    return given if isinstance(given, Codes) else Codes(**given)
