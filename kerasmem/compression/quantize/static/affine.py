"""A factor and a shift per channel: a normalization that nothing can take up."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.product import IntegerProduct


@keras.saving.register_keras_serializable("kerasmem")
class IntegerAffine(IntegerProduct):
    """Multiplies by a number per channel and adds one, as a convolution of size 1."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        factors = ops.reshape(ops.cast(self.kernel, "int32"), (self.channels,))
        return self.rescaled(ops.cast(inputs, "int32") * factors)
