"""The converters to LiteRT and ONNX, which run only where Keras runs on TensorFlow."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Argument:
    """One input of an exported file.

    Args:
        name: what the file calls it.
        shape: with the batch axis; None where a length stays open.
        dtype: name of its dtype.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str


def to_litert(
    call: Callable[..., Sequence[Any]],
    model: Any,
    arguments: Sequence[Argument],
    *,
    int8_weights: bool,
) -> bytes:
    """Return a LiteRT file of `call`, whose outputs it names `output_0` and so on.

    Args:
        call: takes a tensor per argument, returns the outputs of `model`.
        model: whose weights go into the file.
        arguments: the inputs of the file.
        int8_weights: store the weights as int8 and round activations as they come.

    Raises:
        ModelError: if LiteRT lacks an operation of the model; it names it.
    """
    converting = importlib.import_module("kerasmem.backends.tensorflow.converting")
    return converting.to_litert(call, model, arguments, int8_weights=int8_weights)


def to_onnx(
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
    converting = importlib.import_module("kerasmem.backends.tensorflow.converting")
    return converting.to_onnx(call, model, arguments)
