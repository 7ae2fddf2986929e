"""BatchNormalization that trains with the statistics that inference will use.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018, which freezes them for the last part of the training.
"""

from collections.abc import Callable
from typing import Any

import keras

from kerasmem.backends import shadow
from kerasmem.graph.layers import sublayers


def freeze(model: Any) -> Callable[[], None]:
    """Have all BatchNormalization layers use their moving statistics; return the undo.

    These change no more; scale and offset go on training.
    """
    undo = [
        shadow(layer, "call", _in_inference)
        for layer in sublayers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
    ]

    def thaw() -> None:
        while undo:
            undo.pop()()

    return thaw


def _in_inference(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **{**kwargs, "training": False})
