"""A layer of a file of Keras 2, beside the one that was made of it."""

from dataclasses import dataclass, field
from typing import Any

from kerasmem.legacy.tfmot import inner_layer, is_rounding, wrapper_kind

Config = dict[str, Any]


@dataclass
class Made:
    """A layer of the file and the one that was made of it.

    Args:
        stored: what the file says of it: `class_name`, `config`.
        layer: that of Keras 3; None for a function or a quantizer without weights.
        layers: of a model, those that it lists, in the order of the file.
    """

    stored: Config
    layer: Any
    layers: list["Made"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the file calls it, tfmot's wrapper around it included."""
        return self.stored["config"]["name"]

    @property
    def inner(self) -> Config:
        """What the file says of the layer itself, without wrappers."""
        return inner_layer(self.stored)

    @property
    def is_wrapped(self) -> bool:
        """True if tfmot wrapped it, or a layer in it."""
        if wrapper_kind(self.stored) is not None:
            return True
        return any(made.is_wrapped for made in self.layers)

    @property
    def is_rounded(self) -> bool:
        """True if tfmot rounds it, or a layer in it, while it is trained."""
        return is_rounding(self.stored) or any(made.is_rounded for made in self.layers)
