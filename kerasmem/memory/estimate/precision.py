"""The types that a model computes and stores with, its own or assumed ones."""

import re
from dataclasses import dataclass
from typing import Any

import keras

_BITS = re.compile(r"(?:bfloat|float|uint|int|complex)(\d+)")


def width(dtype: Any) -> int:
    """Return the bytes of one entry of a Keras dtype."""
    bits = _BITS.match(keras.backend.standardize_dtype(dtype))
    return max(8, int(bits[1])) // 8 if bits else 1


@dataclass(frozen=True)
class Precision:
    """The types of one model.

    Args:
        model: the model.
        policy: name of the dtype policy to assume in place of the model's own, in
            every layer that has the model's own; None to leave all as they are.
    """

    model: Any
    policy: str | None = None

    def compute_width(self, layer: Any, output_dtype: Any) -> int:
        """Return the bytes of an entry that `layer` computes with."""
        own = getattr(layer, "dtype_policy", None)
        if own is None:
            return self._of_operation(output_dtype)
        if self.policy is not None and own.name == self.model.dtype_policy.name:
            return width(keras.dtype_policies.get(self.policy).compute_dtype)
        return width(own.compute_dtype)

    def variable_dtype(self, variable: Any) -> str:
        """Return the type that `variable` is stored in."""
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if self.policy is None or dtype != self.model.dtype_policy.variable_dtype:
            return dtype
        return keras.dtype_policies.get(self.policy).variable_dtype

    def variable_width(self, variable: Any) -> int:
        """Return the bytes of an entry of `variable`."""
        return width(self.variable_dtype(variable))

    def _of_operation(self, dtype: Any) -> int:
        """Return the width of an operation that has no policy, such as `a + b`."""
        if self.policy is None or str(dtype) != self.model.dtype_policy.compute_dtype:
            return width(dtype)
        return width(keras.dtype_policies.get(self.policy).compute_dtype)
