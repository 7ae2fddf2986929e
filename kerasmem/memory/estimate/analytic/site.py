"""One call of a layer, as the tables of layers see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.program import Shape, Tensor


@dataclass(frozen=True, kw_only=True)
class Site:
    """A layer or operation, called once.

    Args:
        layer: the `keras.layers.Layer` or `keras.Operation`.
        names: of its arguments, that of each tensor that goes in; empty for a layer
            inside of another.
        shapes: shapes of its outputs.
        width: bytes of an entry of what it computes with.
        weight: returns the tensor of one of its variables, in the type that it
            computes with; None for None.
        inner: records a layer inside of this one: takes the layer, its inputs and the
            shape of its output.
    """

    layer: Any
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    width: int
    weight: Callable[[Any], Tensor | None]
    inner: Callable[[Any, list[Tensor], Shape], Tensor]

    @property
    def shape(self) -> Shape:
        """Shape of the first output."""
        return self.shapes[0]

    def parameter(self, variable: Any) -> Tensor:
        """Return the tensor of a variable that is there."""
        found = self.weight(variable)
        if found is None:
            raise TypeError(f"A variable was expected. Received: {variable!r}.")
        return found

    @property
    def channels_first(self) -> bool:
        """Whether the layer was told that channels come before space."""
        return getattr(self.layer, "data_format", None) == "channels_first"


Handler = Callable[[Tape, Site, list[Tensor]], Tensor]
