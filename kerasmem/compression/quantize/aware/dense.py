"""Dense layers that round what goes into the activation within them."""

from collections.abc import Callable
from typing import Any

import keras

from kerasmem.backends import shadow


def round_before_activation(
    layer: Any, rounded: Callable[[Any], Any], is_passing: Callable[[], bool]
) -> Callable[[], None]:
    """Have a Dense round what its activation takes; return the undo.

    Args:
        layer: a Dense with an activation.
        rounded: takes the tensor.
        is_passing: whether it is to be done now.
    """

    def call(original: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_passing():
            return original(inputs, *args, **kwargs)
        y = keras.ops.matmul(inputs, layer.kernel)
        y = y if layer.bias is None else keras.ops.add(y, layer.bias)
        return layer.activation(rounded(y))

    return shadow(layer, "call", call)
