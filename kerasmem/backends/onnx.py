"""The converter to ONNX, which runs only where Keras runs on TensorFlow."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kerasmem.backends.litert import Argument


def converted(
    call: Callable[..., Sequence[Any]], model: Any, arguments: Sequence[Argument]
) -> bytes:
    """Return an ONNX file of `call`, whose outputs it names `output_0` and so on.

    Args:
        call: takes a tensor per argument, returns the outputs of `model`.
        model: whose weights go into the file.
        arguments: the inputs of the file.

    Raises:
        ModelError: if ONNX lacks an operation of the model; it names it.
    """
    room = importlib.import_module("kerasmem.backends._tensorflow_onnx")
    return room.converted(call, model, arguments)
