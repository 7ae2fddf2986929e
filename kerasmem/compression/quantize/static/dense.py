"""A matrix product of codes."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.exact import exact_sums
from kerasmem.compression.quantize.static.product import IntegerProduct


@keras.saving.register_keras_serializable("kerasmem")
class IntegerDense(IntegerProduct):
    """A `keras.layers.Dense` of codes, over the last axis."""

    rounds_twice = False

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        rows = keras.ops.cast(inputs, "float32")
        return self.rescaled(exact_sums(keras.ops.matmul, rows, self.kernel, axis=0))
