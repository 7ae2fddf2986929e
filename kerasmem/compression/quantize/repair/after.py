"""Quantizing weights, with what data can tell about it and mend."""

from typing import TYPE_CHECKING, Any

from kerasmem.compression.quantize.adaptive.apply import round_adaptively, told
from kerasmem.compression.quantize.apply import (
    NO_SCALES,
    Exclude,
    Scales,
    quantize_weights,
)
from kerasmem.compression.quantize.config import ADAPTIVE
from kerasmem.compression.quantize.repair.bias import correct_biases
from kerasmem.compression.quantize.repair.output_error import with_output_error
from kerasmem.errors import ConfigError
from kerasmem.files.data import check_data
from kerasmem.graph.clone import clone
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


def quantize_and_repair(
    model: Any,
    choice: "Quantize",
    data: Any = None,
    left: Exclude = lambda _: False,
    scales: Scales = NO_SCALES,
) -> list[WeightChange]:
    """Store the weights of `model` in fewer bits, in place.

    Args:
        model: a built model.
        choice: the scheme.
        data: samples in any form that `kerasmem.files.data` lists, to correct biases
            on and to measure what layers lose in what they make; None to do neither.
        left: tells of more weights to leave alone than the choice does.
        scales: those that were learned.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ConfigError: if biases are to be corrected, or weights to be rounded
            adaptively, without data.
        DataError: if the data does not fit the model, or a layer makes something of it
            that is not finite.
        ModelError: if there is nothing to quantize.
    """
    if data is None:
        if choice.bias_correction:
            raise ConfigError(
                "Biases are corrected on samples: give data=. Received: "
                "bias_correction=True, data=None."
            )
        if choice.rounding == ADAPTIVE:
            raise ConfigError(
                "Weights are rounded adaptively on samples: give data=x (--data on the "
                f"command line). Received: rounding={choice.rounding!r}, data=None."
            )
        return quantize_weights(model, choice, left, scales)
    check_data(model, data)
    original = clone(model)
    if choice.rounding == ADAPTIVE:
        ratios = round_adaptively(original, model, choice, left, data)
        changes = told(quantize_weights(model, choice, left), original, ratios)
    else:
        changes = quantize_weights(model, choice, left, scales)
    if choice.bias_correction:
        changes = correct_biases(changes, original, model, data)
    return with_output_error(changes, original, model, data)
