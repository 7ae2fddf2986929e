"""Int8 codes of floats, and what all layers share that compute with them."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np

LEAST, MOST = -128, 127


@dataclass(frozen=True)
class Codes:
    """What the int8 codes of a tensor stand for: `scale * (code - zero_point)`.

    Args:
        scale: a positive float32 number.
        zero_point: the code of 0, in [-128, 127].
    """

    scale: float
    zero_point: int

    @classmethod
    def of_range(cls, low: float, high: float) -> "Codes":
        """Return the codes for a range.

        Args:
            low: its lower end, at most 0.
            high: its upper end, at least 0 and above `low`.

        Example:
            >>> Codes.of_range(0.0, 255.0)
            Codes(scale=1.0, zero_point=-128)
        """
        scale = np.float32((high - low) / (MOST - LEAST))
        scale = float(max(scale, np.finfo(np.float32).tiny))
        return cls(scale, min(MOST, max(LEAST, rounded(LEAST - low / scale))))

    def of(self, value: float) -> int:
        """Return the code of a real number, in [-128, 127].

        Example:
            >>> Codes(0.5, -128).of(6.0)
            -116
        """
        code = rounded(float(np.float32(value) / np.float32(self.scale)))
        return min(MOST, max(LEAST, code + self.zero_point))

    def to_json(self) -> dict[str, Any]:
        """Return this as plain data."""
        return dict(vars(self))


def rounded(value: float) -> int:
    """Return the nearest whole number, the one farther from zero of two, as C does.

    Example:
        >>> rounded(-0.5), rounded(2.5)
        (-1, 3)
    """
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


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

    arguments: ClassVar[tuple[str, ...]] = ()
    """Those of a subclass, kept as attributes of their names."""

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
        """Return the arguments, those that a subclass lists in `arguments` too."""
        of_classes = [vars(cls).get("arguments", ()) for cls in type(self).__mro__]
        return {
            **super().get_config(),
            **{name: getattr(self, name) for names in of_classes for name in names},
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
