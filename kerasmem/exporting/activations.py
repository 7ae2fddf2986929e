"""LiteRT's operations for activations."""

from collections.abc import Sequence
from typing import Any

import keras

from kerasmem.compression.quantize.static.base import Codes
from kerasmem.compression.quantize.static.elementwise import FUNCTIONS
from kerasmem.compression.quantize.static.split import activation_of
from kerasmem.errors import ModelError
from kerasmem.exporting.writer import Write, Writer
from kerasmem.graph.layer_table import entry_of

_SOFTMAX_CODES = Codes(1 / 256, -128)
"""LiteRT's softmax gives no others."""

_LEAST_STEP = 2.0**-26
_LEAST_RELU6_STEP = 6 / (2.0**31 - 2**8)

_LOOKED_UP = {"sigmoid": "LOGISTIC", "tanh": "TANH"}


def ending(layer: Any, codes: Codes) -> tuple[Write, Codes] | None:
    """Return what writes an activation that stays float at the end of a model.

    None for any other layer.

    Args:
        layer: the activation.
        codes: of its input.

    Raises:
        ModelError: if LiteRT would end the process rather than compute it.
    """
    entry = entry_of(layer)
    function = getattr(layer, "activation", None)
    if entry.name == "layers.Softmax" and layer.axis == -1:
        return _softmax_of(layer, codes), _SOFTMAX_CODES
    if entry.channels == "activation" and function is keras.activations.softmax:
        return _softmax_of(layer, codes), _SOFTMAX_CODES
    looked_up = activation_of(layer) or ""
    if looked_up not in FUNCTIONS or entry.integer != "activation":
        return None
    return _named(_LOOKED_UP[looked_up]), FUNCTIONS[looked_up][1]


def check_relu6(layer: Any) -> None:
    """Raise if LiteRT cannot count 6 in steps of what a layer with ReLU6 gives.

    Args:
        layer: an integer layer.

    Raises:
        ModelError: with the layer and its steps.
    """
    if layer.activation == "relu6" and layer.output_codes.scale < _LEAST_RELU6_STEP:
        raise ModelError(
            f"LiteRT cannot run {layer.name!r}: the steps of what its ReLU6 gives must "
            f"be at least {_LEAST_RELU6_STEP:.3g}, for it counts 6 in them in 32 bits. "
            f"Received: steps of {layer.output_codes.scale:.3g}. Next: train the model "
            "first, or give data that it gives larger values for."
        )


def _softmax_of(layer: Any, codes: Codes) -> Write:
    if codes.scale <= _LEAST_STEP:
        raise ModelError(
            f"LiteRT cannot run {layer.name!r}: the steps of what its softmax takes "
            f"must be above {_LEAST_STEP:.3g}. Received: steps of {codes.scale:.3g}. "
            "Next: train the model first, or give data that its classes differ on."
        )
    return _softmax


def _softmax(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    del layer
    writer.operation("SOFTMAX", inputs, output, "SoftmaxOptions", beta=1.0)


def _named(name: str) -> Write:
    def write(
        writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
    ) -> None:
        del layer
        writer.operation(name, inputs, output)

    return write


def table(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    """Write a sigmoid or tanh."""
    writer.operation(_LOOKED_UP[layer.function], inputs, output)


def relu(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    """Write a ReLU or ReLU6 of its own."""
    writer.operation(layer.activation.upper(), inputs, output)


def leaky_relu(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    """Write a leaky ReLU."""
    kind, slope = "LeakyReluOptions", layer.slope
    writer.operation("LEAKY_RELU", inputs, output, kind, alpha=slope)


def hard_silu(
    writer: Writer, layer: Any, _: Sequence[Any], inputs: Sequence[int], output: int
) -> None:
    """Write a hard SiLU."""
    del layer
    writer.operation("HARD_SWISH", inputs, output, "HardSwishOptions")
