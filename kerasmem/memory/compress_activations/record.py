"""What compressed activations save and what they cost in exactness."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from kerasmem.records.plain import AnyNumber, read_json, record_from
from kerasmem.units import format_bytes

FATES = ("8 bits", "as it is", "not stored")
"""What becomes of an output. One that is not stored is computed again if need be."""


@dataclass(frozen=True)
class LayerBytes:
    """The output of one layer, or of one operation such as `a + b`.

    Args:
        layer: its name.
        output_bytes: bytes of its outputs in its compute dtype.
        stored_bytes: bytes of them that wait for the backward pass, by arithmetic.
        fate: one of `FATES`.
    """

    layer: str
    output_bytes: int
    stored_bytes: int
    fate: Annotated[str, FATES]


@dataclass(frozen=True)
class GradientChange:
    """How far the gradient of one layer's weights is from the exact one.

    Args:
        layer: path of the layer.
        relative: L2 norm of the difference as a share of the exact gradient's norm;
            infinite where that is zero and the other is not.
    """

    layer: str
    relative: AnyNumber


@dataclass(frozen=True)
class ActivationReport:
    """What waits for the backward pass of one batch, and what the gradient becomes.

    Args:
        layers: in the order in which they run; a shared layer once a call.
        gradients: measured in one step, empty if there was no target to learn.
        gradient_change: the same for all weights together, None if not measured.
    """

    layers: tuple[LayerBytes, ...]
    gradients: tuple[GradientChange, ...] = ()
    gradient_change: AnyNumber | None = None

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        return sum(layer.output_bytes for layer in self.layers)

    @property
    def stored_bytes(self) -> int:
        """Bytes of them that wait for the backward pass."""
        return sum(layer.stored_bytes for layer in self.layers)

    def table(self) -> str:
        """Return the figures as text, a line a layer."""
        width = max((len(layer.layer) for layer in self.layers), default=0)
        lines = [
            f"outputs of layers: {format_bytes(self.output_bytes)}, of which "
            f"{format_bytes(self.stored_bytes)} are stored (by arithmetic)"
        ]
        lines += [
            f"  {row.layer:<{width}}  {format_bytes(row.output_bytes):>10}  "
            f"{format_bytes(row.stored_bytes):>10}  {row.fate}"
            for row in self.layers
        ]
        if self.gradient_change is not None:
            lines.append(
                f"gradient of this batch: moved by {self.gradient_change:.2%} of its "
                "norm (measured)"
            )
            lines += [f"  {g.layer}  {g.relative:.2%}" for g in self.gradients]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ActivationReport":
        """Return the record that `to_json` made `text` of.

        Raises:
            InputError: if it is another text.
        """
        return record_from(cls, read_json(text))
