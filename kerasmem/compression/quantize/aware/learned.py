"""The scales and ranges of a model with fake quantization."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.quantize.apply import coding_of, name_of
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.aware.weights import FakeQuantizedVariable
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.owners import stand_ins
from kerasmem.compression.quantize.static.plan import Ranges
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import sublayers, weights

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


@dataclass(frozen=True)
class Learned:
    """What a training has found.

    Args:
        scales: of weights, by their names, as they are stored.
        codings: how these weights were rounded in it.
        ranges: of activations, by the names of their tensors in the float model.
    """

    scales: Mapping[str, np.ndarray]
    codings: frozenset[Coding]
    ranges: Ranges

    def check_stored_so(self, config: "Quantize") -> None:
        """Raise unless the config stores weights by the scales that were learned.

        Raises:
            ConfigError: if it does not.
        """
        for coding in self.codings:
            is_nearest = config.has_scales and config.rounding == "nearest"
            if not is_nearest or coding_of(config, coding.axes) != coding:
                raise ConfigError(
                    f"The scales of {len(self.scales)} weights were learned for "
                    f"{coding.dtype!r} to nearest, granularity={coding.granularity!r}. "
                    "Next: compress with the Quantize that the model was trained for. "
                    f"Received: {config!r}."
                )


def is_aware(model: Any) -> bool:
    """Return whether `quantization_aware` made a model."""
    return any(layer.fixed is None for layer in _quantizers(sublayers(model))) or any(
        isinstance(value, FakeQuantizedVariable) for value in stand_ins(model)
    )


def is_static(model: Any) -> bool:
    """Return whether `Quantize("int8-static")` rounds activations of a model."""
    return bool(_quantizers(sublayers(model))) and not is_aware(model)


def _quantizers(layers: Iterable[Any]) -> list[FakeQuantize]:
    return [each for each in layers if isinstance(each, FakeQuantize)]


def learned(model: Any) -> Learned:
    """Return the scales and ranges of fake quantization; of a plain model nothing."""
    scales, codings = {}, set()
    for weight in weights(model):
        value = vars(weight.owner).get(weight.attribute)
        if isinstance(value, FakeQuantizedVariable) and value.scales is not None:
            scales[name_of(model, weight)] = value.scales
            codings.add(value.coding)
    ranges = {
        name: layer.ends
        for layer in _quantizers(sublayers(model))
        if layer.ends is not None
        for name in layer.tensors
    }
    return Learned(scales, frozenset(codings), ranges)
