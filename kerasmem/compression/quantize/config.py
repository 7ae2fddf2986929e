"""The choice of a number format for the weights."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kerasmem.compression.quantize.apply import quantize_weights
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError
from kerasmem.records import WeightChange

SCHEMES = ("int8",)


@dataclass(frozen=True)
class Quantize(Technique):
    """Store kernels and embedding tables in fewer bits.

    Args:
        scheme: `"int8"`: weight-only, symmetric, one float32 scale per output channel
            (per row of an embedding table). Activations stay float.

    Raises:
        ConfigError: if the scheme is unknown.

    Example:
        >>> Quantize("int8").to_json()
        {'technique': 'quantize', 'scheme': 'int8'}
    """

    scheme: str = "int8"

    name: ClassVar[str] = "quantize"
    trains_on: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ConfigError(
                f"The scheme of Quantize must be one of {', '.join(SCHEMES)}. "
                f"Received: scheme={self.scheme!r}."
            )

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Make the kernels of `model` int8, in place; it takes no data."""
        del data
        return quantize_weights(model)
