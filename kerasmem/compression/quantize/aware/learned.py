"""Scales and ranges of a fake-quantized model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kerasmem.compression.quantize.apply import coding_of, name_of
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.aware.weights import FakeQuantizedVariable
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.static.plan import Ranges
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import Weight, sublayers, weights
from kerasmem.types import Model

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


@dataclass(frozen=True)
class Learned:
    """Scales and ranges after training.

    Args:
        scales: Stored scales by weight name.
        codings: These weights, with their storage formats.
        ranges: Activation ranges by tensor name in the float model.
        is_aware: Whether the model comes from `quantization_aware`.
    """

    scales: Mapping[str, np.ndarray]
    codings: Sequence[tuple[Weight, Coding]]
    ranges: Ranges
    is_aware: bool

    def check_stored_so(self, config: "Quantize") -> None:
        """Raise `ConfigError` unless `config` has the formats of the learned scales."""
        for weight, coding in self.codings:
            is_nearest = config.has_scales and config.rounding == "nearest"
            if not is_nearest or coding_of(config, weight) != coding:
                raise ConfigError(
                    f"The scales of {len(self.scales)} weights were learned for "
                    f"{coding.dtype!r}, granularity={coding.granularity!r}, "
                    f"rounding='nearest'. Received: {config!r}. Next: compress with "
                    "the `Quantize` used for training."
                )


def is_aware(model: Model) -> bool:
    """Return whether a model comes from `quantization_aware`."""
    return learned(model).is_aware


def is_static(model: Model) -> bool:
    """Return whether `Quantize("int8-static")` has quantized a model."""
    has_quantizers = any(isinstance(x, FakeQuantize) for x in sublayers(model))
    return has_quantizers and not is_aware(model)


def learned(model: Model) -> Learned:
    """Return the scales and ranges of a model, empty without fake quantization."""
    layers, scales, codings = sublayers(model), {}, []
    quantizers = [layer for layer in layers if isinstance(layer, FakeQuantize)]
    is_read_rounded = any(
        isinstance(value, FakeQuantizedVariable)
        for layer in layers
        for value in vars(layer).values()
    )
    for weight in weights(model) if is_read_rounded else ():
        value = vars(weight.owner).get(weight.attribute)
        if isinstance(value, FakeQuantizedVariable) and value.scales is not None:
            scales[name_of(model, weight)] = value.scales
            codings.append((weight, value.coding))
    ranges = {
        name: layer.ends
        for layer in quantizers
        if layer.ends is not None
        for name in layer.tensors
    }
    is_aware = is_read_rounded or any(layer.fixed is None for layer in quantizers)
    return Learned(scales, codings, ranges, is_aware)
